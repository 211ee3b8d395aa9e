"""ConServe: the conversation, not the turn, is what is placed.

The rule of this module: a conversation's first prompt is prefilled by the prefill worker that is done with it first,
its KV moves once to the decode worker with the most room, and every later turn runs there. Only what can be seen
decides: the prompt's length and what each worker holds. It only reads.
Source: ConServe (arXiv 2606.01839) [F]; formulas and limits methods.md 3.2 [D].
"""

from collections.abc import Sequence

from gateway.core.choosing import Ask, Chosen, MustWait, Pick, Surroundings, features_of
from gateway.core.conversation.book import Conversation, ConversationBook
from gateway.core.conversation.turn import Turn
from gateway.core.hashing import rank_of
from gateway.core.look import Look
from gateway.core.placement import MAX_CANDIDATES
from gateway.core.types import Candidate, Path, PathChoice, Reason, WorkerView

KEPT_RATIO = 0.8
"""A conversation that was given up goes on at its home where so much of its KV is thought to be there still."""


class Conserve:
    """Places conversations and keeps their turns together."""

    def __init__(self, around: Surroundings, book: ConversationBook) -> None:
        self._around = around
        self._book = book
        self._rules = around.policy.conversation

    def choose(self, ask: Ask, turn: Turn, look: Look) -> Chosen | MustWait | None:
        """The route of one turn; None where no worker could serve it, or one that could is unlike the others."""
        pool = look.decode
        if not pool or not all(self._around.is_plain(worker_id) for worker_id in pool):
            return None
        views = self._around.views(pool, look.hits, ask.now_s)
        known = turn.known
        home = None if known is None else next((view for view in views if view.worker_id == known.worker_id), None)
        if known is not None and home is not None:
            if not (known.is_cold or known.kv_tokens):
                return self._begin(ask, turn, look, [home])
            is_to_stay = self._is_there_still(ask, known, home) if known.is_cold else True
            if is_to_stay and not self._is_to_move(ask, known, home, views):
                return self._go_on(ask, home)
        return self._begin(ask, turn, look, views)

    def _is_there_still(self, ask: Ask, known: Conversation, home: WorkerView) -> bool:
        """Whether most KV of a conversation that was given up has outlived that, and there is room for it."""
        isl_tokens = ask.estimate.isl_tokens
        is_there = home.hit_tokens >= KEPT_RATIO * min(known.kv_tokens, isl_tokens)
        return is_there and self._missing(home, self._rules.promised_tokens(isl_tokens, is_new=False), ask.now_s) <= 0

    def _go_on(self, ask: Ask, home: WorkerView) -> Chosen:
        decode = Pick(home, [_candidate(home, "home", 1.0)], pinned=True)
        new_tokens = ask.estimate.isl_tokens - home.hit_tokens
        choice = PathChoice(
            path=Path.LOCAL,
            reason=Reason.CONVERSATION_GOES_ON,
            words=f"the conversation lives on {home.worker_id}; about {new_tokens} prompt tokens are new there",
        )
        return self._chosen(ask, choice, None, decode)

    def _begin(self, ask: Ask, turn: Turn, look: Look, views: Sequence[WorkerView]) -> Chosen | MustWait:
        promised = self._rules.promised_tokens(ask.estimate.isl_tokens, is_new=turn.is_new)
        open_to = self._with_room(ask, promised, views)
        if not open_to and not turn.is_new:
            open_to = list(views)  # it was let in before
        if not open_to:
            return MustWait(words=f"no decode worker has room for {promised} more tokens of conversations")
        ranked = sorted(open_to, key=lambda view: self._fullness(view, turn, ask.now_s))
        home = ranked[0]
        shown = [_candidate(view, "room", self._room(view, ask.now_s)) for view in ranked[:MAX_CANDIDATES]]
        decode = Pick(home, shown)
        prefill = self._prefiller(ask, look, home)
        choice = (
            self._forced(ask, home, prefill)
            or self._here(ask, turn, home, prefill)
            or PathChoice(
                path=Path.REMOTE,
                reason=Reason.CONVERSATION_BEGINS,
                words=f"a conversation begins with {ask.estimate.isl_tokens} prompt tokens",
            )
        )
        return self._chosen(ask, choice, prefill, decode)

    def _chosen(self, ask: Ask, choice: PathChoice, prefill: Pick | None, decode: Pick) -> Chosen:
        outlook = self._around.outlook(ask, choice.path, prefill, decode)
        return Chosen(features_of(ask.estimate, prefill, decode), choice, outlook, prefill, decode)

    def _forced(self, ask: Ask, home: WorkerView, prefill: Pick | None) -> PathChoice | None:
        forced = self._around.forced(ask, home, has_prefiller=prefill is not None, decode_ejected=False)
        isl, least = ask.estimate.isl_tokens, self._rules.local_below_tokens
        if forced is None and isl < least:
            words = f"a conversation begins with {isl} prompt tokens, fewer than {least}"
            return PathChoice(path=Path.LOCAL, reason=Reason.CONVERSATION_BEGINS, words=words)
        return forced

    def _here(self, ask: Ask, turn: Turn, home: WorkerView, prefill: Pick | None) -> PathChoice | None:
        """The local path for one that comes back, where its new home would be done sooner.

        Where memory is scarce many come back, with long histories: prefill workers that new conversations need would
        be lost to them.
        """
        if turn.is_new or prefill is None or self._done(ask, home) >= self._done(ask, prefill.view):
            return None
        words = f"a conversation comes back with {ask.estimate.isl_tokens} prompt tokens; its home has time for them"
        return PathChoice(path=Path.LOCAL, reason=Reason.CONVERSATION_BEGINS, words=words)

    def _with_room(self, ask: Ask, promised: int, views: Sequence[WorkerView]) -> list[WorkerView]:
        """Those that may take a new conversation; after it has waited, those where idle ones can be given up too."""
        found = [view for view in views if self._missing(view, promised, ask.now_s) <= 0]
        if found:
            return found
        rules = self._rules
        if rules.evict_after_s is not None and ask.waited_s >= rules.evict_after_s:
            before_s = ask.now_s - rules.protected_s(self._book.pauses.usual_s())
            found = [
                view
                for view in views
                if self._book.idle(view.worker_id, self._missing(view, promised, ask.now_s), before_s=before_s)
            ]
        return list(views) if not found and ask.waited_s >= rules.max_wait_s else found

    def _missing(self, view: WorkerView, promised: int, now_s: float) -> int:
        held = self._book.booked_tokens(view.worker_id, now_s)
        return self._rules.missing_tokens(held, promised, view.kv_capacity_tokens)

    def _fullness(self, view: WorkerView, turn: Turn, now_s: float) -> tuple[float, int, int]:
        """Less is better."""
        rank = rank_of(turn.identity.conversation_id, view.worker_id)
        return 1.0 - self._room(view, now_s), self._book.residents(view.worker_id), -rank

    def _room(self, view: WorkerView, now_s: float) -> float:
        """The share of its KV cache that no conversation was promised, in [0, 1]."""
        held, capacity = self._book.booked_tokens(view.worker_id, now_s), view.kv_capacity_tokens
        return max(0.0, 1.0 - held / capacity) if capacity else 1.0 / (1.0 + held)

    def _prefiller(self, ask: Ask, look: Look, home: WorkerView) -> Pick | None:
        """The prefill worker that is done first."""
        pool = look.prefill(but=home.worker_id)
        if not pool:
            return None
        views = self._around.views(pool, look.hits, ask.now_s)
        done = sorted(((self._done(ask, view), view) for view in views), key=lambda pair: pair[0])
        soonest, best = done[0]
        ranked = [_candidate(view, "done_first", soonest / at if at else 1.0) for at, view in done[:MAX_CANDIDATES]]
        return Pick(best, ranked)

    def _done(self, ask: Ask, view: WorkerView) -> float:
        """When a worker would be done with it: in seconds where prices are known, else in tokens."""
        isl, forecast = ask.estimate.isl_tokens, self._around.forecast
        if forecast is not None:
            return forecast.prefill_leg(view, isl, ask.now_s).done_s
        return float(view.prefill_tokens + isl - view.hit_tokens)

    def _is_to_move(self, ask: Ask, known: Conversation, home: WorkerView, views: Sequence[WorkerView]) -> bool:
        """Whether its home is so much fuller than another worker with room for it that it is worth a transfer."""
        ratio = self._rules.rebalance_ratio
        if ratio is None or known.under_way:
            return False
        now_s = ask.now_s
        emptiest = max(views, key=lambda view: self._room(view, now_s))
        promised = self._rules.promised_tokens(ask.estimate.isl_tokens, is_new=False)
        is_fuller = self._room(emptiest, now_s) - self._room(home, now_s) > ratio
        return is_fuller and self._missing(emptiest, promised, now_s) <= 0


def _candidate(view: WorkerView, name: str, score: float) -> Candidate:
    return Candidate(view.worker_id, ((name, score),), score)
