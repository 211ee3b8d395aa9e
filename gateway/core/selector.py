"""How a request gets its path and its workers.

The rule of this module: it only reads. Whoever asks twice without a change in between gets the same answer;
the router alone writes down what was decided.
"""

from random import Random

from gateway.core.choosing import Ask, Chosen, MustWait, Pick, Surroundings, features_of
from gateway.core.conversation.book import ConversationBook
from gateway.core.conversation.conserve import Conserve
from gateway.core.conversation.rules import Mode, Pinning
from gateway.core.look import Look
from gateway.core.path.base import PathQuestion
from gateway.core.path.priced import JointPolicy, RouteQuestion, candidates_of, choice_of
from gateway.core.placement import MAX_CANDIDATES, Placement, Pool
from gateway.core.types import (
    Decision,
    DecisionId,
    Features,
    Path,
    PathChoice,
    Refusal,
    RefusalKind,
    Role,
    WorkerId,
)

SHOWN_MODEL_CHARS = 256
"""A client may ask for any text as a model; a refusal repeats so much of it."""
KEPT_WORDS = "the response that it goes on from is kept on"


class Selector:
    """Reads the state of the fleet and answers."""

    def __init__(self, around: Surroundings, book: ConversationBook) -> None:
        self._around = around
        self._policy = around.policy
        self._fleet = around.fleet
        self._conserve = Conserve(around, book)

    def decide(self, ask: Ask, decision_id: DecisionId, rng: Random) -> Decision | Refusal | MustWait:
        """The route of one request, or why it has none, or none yet."""
        if ask.kept_on is not None and ask.kept_on in ask.exclude:
            return self._refusal(ask)  # another worker would only say that it does not know the response
        look = Look(self._around, ask)
        chosen = self._hold_together(ask, look) or self._choose_jointly(ask, look) or self._choose(ask, look, rng)
        if chosen is None:
            return self._refusal(ask)
        return chosen if isinstance(chosen, MustWait) else self._decision(ask, decision_id, chosen)

    def _hold_together(self, ask: Ask, look: Look) -> Chosen | MustWait | None:
        """As the conversation wants it; None where it has no say in both path and workers."""
        turn = ask.turn
        return self._conserve.choose(ask, turn, look) if turn is not None and turn.mode is Mode.CONSERVE else None

    def _choose(self, ask: Ask, look: Look, rng: Random) -> Chosen | None:
        """First the workers, then the path."""
        decode = self._pick_decode(ask, look)
        if decode is None:
            return None
        prefill = self._pick_prefill(ask, look, decode)
        features = features_of(ask.estimate, prefill, decode)
        choice = self._choose_path(ask, features, prefill, decode, rng)
        outlook = choice.outlook or self._around.outlook(ask, choice.path, prefill, decode)
        return Chosen(features, choice, outlook, prefill, decode)

    def _choose_jointly(self, ask: Ask, look: Look) -> Chosen | None:
        """Workers and path at once; None where the policy does not do that, or the fleet is not as it expects."""
        policy, around = self._policy.path, self._around
        if not isinstance(policy, JointPolicy) or around.forecast is None:
            return None
        decode_pool, hits = look.decode, look.hits
        if not decode_pool or not all(around.is_plain(worker_id) for worker_id in decode_pool):
            return None
        pinning = self._policy.conversation.pinning
        # A price knows better than a hash where a conversation should live.
        pin = look.pin(pinning) if pinning is Pinning.LOAD else None
        prefill_pool = look.prefill()
        decode = around.views(decode_pool if pin is None else [pin], hits, ask.now_s)
        forced = around.forced(ask, decode[0], has_prefiller=bool(prefill_pool), decode_ejected=False)
        question = RouteQuestion(
            isl_tokens=ask.estimate.isl_tokens,
            osl_tokens=ask.estimate.osl_tokens,
            slo=ask.slo,
            now_s=ask.now_s,
            prefill=around.views([] if forced else prefill_pool, hits, ask.now_s),
            decode=decode,
            forecast=around.forecast,
            is_first=ask.is_first,
        )
        route, compared = policy.choose_route(question)
        picked_prefill = None if route.prefill is None else Pick(route.prefill, [])
        picked_decode = Pick(route.decode, candidates_of(compared), pin is not None)
        features = features_of(ask.estimate, picked_prefill, picked_decode)
        choice = forced or choice_of(route, compared, features)
        return Chosen(features, choice, route.outlook, picked_prefill, picked_decode)

    def _pick_decode(self, ask: Ask, look: Look) -> Pick | None:
        """The decode worker: the conversation's own, else the best by score."""
        if not look.decode:
            return None
        pin = look.pin(self._policy.conversation.pinning)
        return self._pick(ask, look.decode, look.hits, self._policy.decode_placement, pin)

    def _pick_prefill(self, ask: Ask, look: Look, decode: Pick) -> Pick | None:
        worker_id = decode.view.worker_id
        spec = self._fleet[worker_id].spec
        if spec.splits:
            return decode
        pool = look.prefill(but=None if spec.role is Role.DECODE else worker_id)
        return self._pick(ask, pool, look.hits, self._policy.prefill_placement) if pool else None

    def _pick(
        self,
        ask: Ask,
        pool: list[WorkerId],
        hits: dict[WorkerId, int],
        placement: Placement,
        pin: WorkerId | None = None,
    ) -> Pick:
        views = self._fleet.views(pool, ask.now_s)
        hit_tokens = [hits.get(worker_id, 0) for worker_id in pool] if hits else [0] * len(pool)
        candidates = Pool(views, hit_tokens, ask.estimate.isl_tokens)
        ranked = placement.rank(candidates, ask.facts.request_id, MAX_CANDIDATES)
        place = pool.index(pin or ranked[0].worker_id)
        view, hit = views[place], hit_tokens[place]
        return Pick(view.with_hit(hit) if hit else view, ranked, pin is not None)

    def _choose_path(self, ask: Ask, features: Features, prefill: Pick | None, decode: Pick, rng: Random) -> PathChoice:
        # One that splits by itself holds no other worker's KV back.
        ejected = prefill is not decode and not self._around.health.is_well(decode.view.worker_id)
        forced = self._around.forced(ask, decode.view, has_prefiller=prefill is not None, decode_ejected=ejected)
        if forced is not None:
            return forced
        assert prefill is not None
        # A worker that splits by itself has prices of its own.
        forecast = None if prefill is decode else self._around.forecast
        question = PathQuestion(
            features, prefill.view, decode.view, ask.now_s, ask.slo, forecast, is_first=ask.is_first
        )
        return self._policy.path.choose(question, rng)

    def _decision(self, ask: Ask, decision_id: DecisionId, chosen: Chosen) -> Decision:
        choice, prefill, decode = chosen.choice, chosen.prefill, chosen.decode
        remote = choice.path is Path.REMOTE
        # A worker that splits by itself is its own prefill worker: one leg, and nobody else to name.
        two_legs = remote and prefill is not None and prefill is not decode
        turn, decode_worker = ask.turn, decode.view.worker_id
        is_kept = decode_worker == ask.kept_on
        # Two dozen fields by their places would be quicker, and nobody could read or check them.
        return Decision(
            decision_id=decision_id,
            request_id=ask.facts.request_id,
            model=ask.facts.model,
            attempt=ask.attempt,
            path=choice.path,
            prefill_worker=prefill.view.worker_id if two_legs and prefill else None,
            decode_worker=decode_worker,
            policy=self._policy.path.name,
            policy_version=self._policy.version,
            reason=choice.reason,
            words=f"{choice.words}; {KEPT_WORDS} {ask.kept_on}" if is_kept else choice.words,
            propensity=choice.propensity,
            cluster=choice.cluster,
            pinned=decode.pinned or is_kept,
            features=chosen.features,
            osl_predicted=ask.estimate.osl_predicted,
            outlook=chosen.outlook,
            prefill_hit_tokens=prefill.view.hit_tokens if prefill else 0,
            decode_hit_tokens=decode.view.hit_tokens,
            slo=ask.slo,
            conversation=None if turn is None else f"{turn.identity.conversation_id:016x}",
            turn=None if turn is None else turn.kind_on(decode_worker, is_local=not remote),
            prefill_candidates=tuple(prefill.ranked) if prefill else (),
            decode_candidates=tuple(decode.ranked),
        )

    def _refusal(self, ask: Ask) -> Refusal:
        model = ask.facts.model
        shown = model[:SHOWN_MODEL_CHARS]
        # An empty fleet says nothing about the model: scaled to zero is 503, not 404 (llm-d-router#1735).
        if len(self._fleet) and not self._fleet.serves(model):
            kind, words = RefusalKind.MODEL_NOT_FOUND, f"The model `{shown}` does not exist."
        elif ask.exclude:
            words = "Every worker that could serve this request has failed it."
            kind = RefusalKind.EXCLUDED_ALL
        else:
            kind, words = RefusalKind.NO_DECODE_WORKER, f"No healthy worker serves `{shown}` now."
        return Refusal(request_id=ask.facts.request_id, kind=kind, words=words)
