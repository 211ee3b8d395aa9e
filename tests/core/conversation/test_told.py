"""What a replica hears of the others: the book follows, and rooms are counted over all of them."""

from typing import Any

import pytest

from gateway.core.conversation.book import Conversation, ConversationBook
from gateway.core.conversation.elsewhere import Elsewhere
from gateway.core.conversation.facts import ConversationFacts, TurnKind
from gateway.core.conversation.identity import ConversationId
from gateway.core.conversation.rules import ConversationRules, Mode, Pinning
from gateway.core.events import ConversationClosed, ConversationTold, KvPinned
from gateway.core.path.rules import AlwaysLocal, AlwaysRemote
from gateway.core.policy import Policy
from gateway.core.router import Router
from gateway.core.types import Decision, Path, RequestFacts, Role, WorkerId
from gateway.core.waiting import Wait
from tests.core.factories import facts, finished, routed, router, worker

D0, D1 = WorkerId("d0"), WorkerId("d1")
TALK = ConversationId(7)
FLEET = (worker("p0", Role.PREFILL), worker("d0", kv_total_blocks=1000), worker("d1", kv_total_blocks=1000))
"""16,000 tokens of KV on each decode worker, of which 13,600 may be promised."""


def conserve(**rules: Any) -> Policy:
    return Policy(path=AlwaysLocal(), conversation=ConversationRules(mode=Mode.CONSERVE, **rules))


def by_load() -> Policy:
    return Policy(path=AlwaysRemote(), conversation=ConversationRules(pinning=Pinning.LOAD))


def turn(label: str | None = "a", number: int = 0, *, tokens: int = 1000) -> RequestFacts:
    turns = tuple(range(1, number + 2))
    return facts(f"{label}/{number}", tokens=tokens, conversation=ConversationFacts(label=label, turns=turns))


def told_of(of: Router, about: RequestFacts, worker_id: WorkerId, **changes: Any) -> ConversationTold:
    """That the conversation of this request lives on a worker."""
    asked = of.conversations.turn_of(about)
    assert asked is not None
    fields: dict[str, Any] = {"end": None, "kv_tokens": 900, "turns": 1, **changes}
    identity = asked.identity
    return ConversationTold(
        at_s=0.0,
        conversation_id=identity.conversation_id,
        label_key=identity.label_key,
        worker_id=worker_id,
        **fields,
    )


def known(book: ConversationBook, conversation_id: ConversationId = TALK) -> Conversation:
    found = book.get(conversation_id)
    assert found is not None
    return found


def tell(book: ConversationBook, worker_id: WorkerId, at_s: float = 1.0, **changes: Any) -> Conversation:
    fields: dict[str, Any] = {"label_key": None, "end": None, "kv_tokens": 100, "turns": 2, **changes}
    book.told(TALK, worker_id, at_s, **fields)
    return known(book)


class TestBook:
    def test_one_that_was_unknown_lives_where_it_is_said(self) -> None:
        book = ConversationBook(10)
        one = tell(book, D0, label_key=5, at_s=3.0)
        assert (one.worker_id, one.is_cold, one.kv_tokens, one.turns, one.last_seen_s) == (D0, False, 100, 2, 3.0)
        assert (book.held_tokens(D0), dict(book.labels)) == (100, {5: TALK})

    def test_one_that_was_known_moves_and_keeps_its_turns(self) -> None:
        book = ConversationBook(10)
        one = tell(book, D0, turns=4)
        book.lose(D0)
        assert tell(book, D1, kv_tokens=70, turns=3) is one
        assert (one.is_cold, one.turns, one.rehomes) == (False, 4, 0)
        assert (book.held_tokens(D0), book.held_tokens(D1)) == (0, 70)

    def test_an_end_is_one_more_name(self) -> None:
        book = ConversationBook(10)
        tell(book, D0, end=11)
        one = tell(book, D0, end=22)
        assert (dict(book.tips), one.end) == ({11: TALK, 22: TALK}, 22)

    def test_news_is_no_turn(self) -> None:
        book = ConversationBook(10)
        assert tell(book, D0, at_s=5.0).paused_since_s is None
        assert tell(book, D0, at_s=6.0, paused_since_s=2.0).paused_since_s == 2.0
        one = tell(book, D1, at_s=7.0)
        assert (one.paused_since_s, one.last_seen_s) == (2.0, 7.0)
        book.turn_begins(one, 100, 8.0)
        book.turn_ends(one, 9.0, kv_tokens=100)
        assert tell(book, D1, at_s=10.0, paused_since_s=4.0).paused_since_s == 9.0  # an older one is none

    def test_a_book_full_of_turns_under_way_takes_nobody_in(self) -> None:
        book = ConversationBook(1)
        book.told(ConversationId(1), D0, 0.0, label_key=None, end=None, kv_tokens=1, turns=1)
        book.turn_begins(known(book, ConversationId(1)), 1, 0.0)
        book.told(TALK, D0, 1.0, label_key=None, end=None, kv_tokens=1, turns=1)
        assert book.get(TALK) is None

    def test_those_given_up_are_left_to_be_read(self) -> None:
        book = ConversationBook(10)
        one = tell(book, D0)
        book.give_up(one)
        assert (list(book.given_up), one.is_cold, book.held_tokens(D0)) == ([one], True, 0)


class TestElsewhere:
    def test_the_others_share_is_all_but_ones_own(self) -> None:
        found = Elsewhere()
        found.told({D0: 1000, D1: 50}, {D0: 300, D1: 80}.__getitem__, until_s=5.0)
        assert (found.tokens(D0, 5.0), found.tokens(D1, 5.0), found.tokens(WorkerId("d2"), 5.0)) == (700, 0, 0)

    def test_it_is_believed_for_a_while(self) -> None:
        found = Elsewhere()
        assert found.tokens(D0, 0.0) == 0
        found.told({D0: 1000}, lambda _: 0, until_s=5.0)
        assert (found.tokens(D0, 5.0), found.tokens(D0, 5.1)) == (1000, 0)


def serve(of: Router, about: RequestFacts, now_s: float = 0.0) -> Decision:
    decision = routed(of.submit(about, now_s))
    of.observe(finished(decision, at_s=now_s, input_tokens=1000, output_tokens=10))
    return decision


class TestRoutes:
    @pytest.mark.parametrize("home", [D0, D1])
    def test_a_turn_goes_where_another_replica_has_left_its_cache(self, home: WorkerId) -> None:
        of = router(*FLEET, policy=conserve())
        of.observe(told_of(of, turn(number=1), home))
        later = serve(of, turn(number=1))
        assert (later.decode_worker, later.path, later.turn) == (home, Path.LOCAL, TurnKind.NEXT)

    @pytest.mark.parametrize("home", [D0, D1])
    @pytest.mark.parametrize(("number", "kind"), [(0, TurnKind.FIRST), (1, TurnKind.MOVED)])
    def test_it_begins_where_all_have_agreed_and_is_prefilled_elsewhere(
        self, home: WorkerId, number: int, kind: TurnKind
    ) -> None:
        for policy in (conserve(), by_load()):
            of = router(*FLEET, policy=policy)
            of.observe(told_of(of, turn(number=number), home, kv_tokens=0, turns=0))
            decision = serve(of, turn(number=number))
            assert (decision.decode_worker, decision.path, decision.turn) == (home, Path.REMOTE, kind)
            (one,) = of.conversations.book
            assert (one.rehomes, one.turns, one.kv_tokens) == (0, 1, 1010)

    def test_one_that_is_moved_while_a_turn_runs_is_at_its_new_home_afterwards(self) -> None:
        of = router(*FLEET, policy=conserve())
        first = routed(of.submit(turn(), 0.0))
        other = D1 if first.decode_worker == D0 else D0
        of.observe(told_of(of, turn(), other))
        of.observe(finished(first, at_s=1.0, input_tokens=1000, output_tokens=10))
        assert serve(of, turn(number=1), 2.0).decode_worker == other
        assert of.conversations.book.held_tokens(first.decode_worker) == 0

    def test_one_that_is_closed_elsewhere_is_forgotten_unless_a_turn_runs_here(self) -> None:
        of = router(*FLEET, policy=conserve())
        first = routed(of.submit(turn(), 0.0))
        (one,) = of.conversations.book
        closed = ConversationClosed(at_s=1.0, conversation_id=one.conversation_id)
        of.observe(closed)
        assert len(of.conversations.book) == 1
        of.observe(finished(first, at_s=2.0, input_tokens=1000, output_tokens=10))
        of.observe(closed)
        assert len(of.conversations.book) == 0
        of.observe(closed)  # nobody's


class TestRoom:
    def test_what_others_hold_takes_room(self) -> None:
        of = router(*FLEET, policy=conserve())
        of.observe(KvPinned(at_s=0.0, until_s=5.0, tokens=((D0, 13_000), (D1, 12_000))))
        assert of.would_wait(turn(), 1.0)
        assert isinstance(of.submit(turn(), 1.0), Wait)
        assert of.release(5.0) == []
        assert of.would_wait(turn("b"), 5.1)  # there is room, but another one was first
        ((_, released),) = of.release(5.1)
        assert isinstance(released, Decision)
        assert not of.would_wait(turn("b"), 5.1)

    def test_the_emptiest_over_all_replicas_is_taken(self) -> None:
        for full, empty in ((D0, D1), (D1, D0)):
            of = router(*FLEET, policy=conserve())
            of.observe(KvPinned(at_s=0.0, until_s=5.0, tokens=((full, 5000),)))
            assert routed(of.submit(turn(), 1.0)).decode_worker == empty

    def test_ones_own_part_is_not_counted_twice(self) -> None:
        of = router(*FLEET, policy=conserve())
        home = serve(of, turn()).decode_worker
        of.observe(KvPinned(at_s=0.0, until_s=5.0, tokens=((home, 1010),)))
        assert of.conversations.book.booked_tokens(home, 1.0) == 1010
        of.observe(KvPinned(at_s=0.0, until_s=5.0, tokens=((home, 4010),)))
        assert of.conversations.book.booked_tokens(home, 1.0) == 4010
        serve(of, turn(number=1))
        assert of.conversations.book.booked_tokens(home, 1.0) == 4010
        assert of.conversations.book.booked_tokens(home, 5.1) == 1010

    def test_asking_whether_it_would_wait_changes_nothing(self) -> None:
        of = router(*FLEET, policy=conserve())
        assert not of.would_wait(turn(), 0.0)
        assert (len(of.ledger), len(of.waiting), len(of.conversations.book)) == (0, 0, 0)
