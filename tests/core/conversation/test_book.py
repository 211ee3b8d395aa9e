"""The book against a plain model, and its bounds."""

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from gateway.core.conversation.book import MAX_TIPS, Conversation, ConversationBook
from gateway.core.conversation.identity import ConversationId, Identity
from gateway.core.types import WorkerId

D0, D1 = WorkerId("d0"), WorkerId("d1")


def named(number: int) -> Identity:
    return Identity(conversation_id=ConversationId(number), label_key=number, is_first=False)


def nameless(number: int, *, is_first: bool = False) -> Identity:
    return Identity(conversation_id=ConversationId(number), label_key=None, is_first=is_first)


def begun(
    book: ConversationBook, identity: Identity, worker: WorkerId = D0, kv: int = 100, at_s: float = 0.0
) -> Conversation:
    found = book.begin(identity, worker, kv, at_s)
    assert found is not None
    return found


def served(
    book: ConversationBook, number: int, *, kv: int = 100, at_s: float = 0.0, worker: WorkerId = D0
) -> Conversation:
    found = begun(book, named(number), worker, kv, at_s)
    book.turn_begins(found, kv, at_s)
    book.turn_ends(found, at_s, kv_tokens=kv)
    return found


def test_a_home_holds_what_its_conversations_hold() -> None:
    book = ConversationBook(10)
    one = served(book, 1, kv=100)
    served(book, 2, kv=50)
    assert (book.held_tokens(D0), book.residents(D0)) == (150, 2)
    book.turn_begins(one, 300, 1.0)
    assert book.held_tokens(D0) == 350
    book.turn_ends(one, 2.0, kv_tokens=280)
    assert book.held_tokens(D0) == 330
    book.turn_begins(one, 10, 3.0)
    assert book.held_tokens(D0) == 330  # a turn frees nothing before it has ended


def test_a_turn_that_failed_leaves_what_was_held() -> None:
    book = ConversationBook(10)
    one = served(book, 1, kv=100)
    book.turn_begins(one, 300, 1.0)
    book.turn_ends(one, 2.0, kv_tokens=None)
    assert (book.held_tokens(D0), one.turns, one.under_way) == (300, 1, 0)


def test_one_whose_home_is_lost_begins_anew_elsewhere() -> None:
    book = ConversationBook(10)
    one = served(book, 1)
    book.lose(D0)
    assert one.is_cold
    assert (book.held_tokens(D0), book.residents(D0), len(book)) == (0, 0, 1)
    again = begun(book, named(1), D1, 70, 5.0)
    assert again is one
    assert (one.worker_id, one.rehomes, one.is_cold, book.held_tokens(D1)) == (D1, 1, False, 70)


def test_idle_ones_are_offered_from_the_one_seen_longest_ago() -> None:
    book = ConversationBook(10)
    for number in range(4):
        served(book, number, kv=100, at_s=float(number))
    busy = book.get(ConversationId(0))
    assert busy is not None
    book.turn_begins(busy, 100, 3.5)
    assert [one.conversation_id for one in book.idle(D0, 150, before_s=9.0)] == [1, 2]
    assert [one.conversation_id for one in book.idle(D0, 100, before_s=9.0)] == [1]
    assert book.idle(D0, 150, before_s=1.5) == []  # the second one may be waiting for a tool
    assert book.idle(D0, 301, before_s=9.0) == []  # one of four is under way


def test_a_full_book_forgets_the_one_that_is_idle_longest() -> None:
    book = ConversationBook(2)
    served(book, 1)
    served(book, 2, at_s=1.0)
    served(book, 3, at_s=2.0)
    assert [one.conversation_id for one in book] == [2, 3]
    assert book.held_tokens(D0) == 200
    assert set(book.labels) == {2, 3}


def test_a_book_full_of_turns_under_way_takes_nobody_in() -> None:
    book = ConversationBook(2)
    for number in (1, 2):
        book.turn_begins(begun(book, named(number)), 100, 0.0)
    assert book.begin(named(3), D0, 100, 1.0) is None
    assert len(book) == 2


def test_ends_of_histories_are_bounded_and_go_with_their_conversation() -> None:
    book = ConversationBook(10)
    one = begun(book, nameless(1))
    for tip in range(10):
        book.turn_begins(one, 100, float(tip))
        book.turn_ends(one, float(tip), kv_tokens=100, ends=(tip,))
    assert sorted(book.tips) == list(range(10 - MAX_TIPS, 10))
    book.forget(one)
    assert not book.tips
    assert not len(book)


def test_equal_beginnings_are_taken_over_by_the_later_conversation() -> None:
    book = ConversationBook(10)
    one = begun(book, nameless(1, is_first=True), D0)
    book.turn_begins(one, 100, 0.0)
    other = begun(book, nameless(1, is_first=True), D1)
    assert other is not one
    book.turn_ends(one, 1.0, kv_tokens=100, ends=(7,))  # nobody's any more
    assert (book.held_tokens(D0), book.held_tokens(D1), dict(book.tips)) == (0, 100, {})


def test_what_is_not_gone_on_with_is_forgotten() -> None:
    book = ConversationBook(10)
    served(book, 1, at_s=0.0)
    served(book, 2, at_s=5.0)
    book.expire(4.0)
    assert [one.conversation_id for one in book] == [2]


class AnyCourse(RuleBasedStateMachine):
    """Whatever happens, homes hold the sum of what is warm there, and memory is bounded."""

    running = Bundle("running")

    def __init__(self) -> None:
        super().__init__()
        self.book = ConversationBook(5)
        self.now_s = 0.0

    @rule(
        target=running,
        number=st.integers(0, 9),
        worker=st.sampled_from([D0, D1]),
        kv=st.integers(0, 500),
        has_name=st.booleans(),
        is_first=st.booleans(),
    )
    def turn_begins(self, number: int, worker: WorkerId, kv: int, has_name: bool, is_first: bool) -> object:
        self.now_s += 1.0
        conversation_id = ConversationId(number + 10 * has_name)
        identity = Identity(conversation_id=conversation_id, label_key=number if has_name else None, is_first=is_first)
        known = self.book.get(conversation_id)
        if known is None or known.is_cold or (is_first and not has_name):
            known = self.book.begin(identity, worker, kv, self.now_s)
        if known is None:
            return multiple()
        self.book.turn_begins(known, kv, self.now_s)
        return known

    @rule(one=consumes(running), kv=st.none() | st.integers(0, 500), tip=st.none() | st.integers(0, 30))
    def turn_ends(self, one: Conversation, kv: int | None, tip: int | None) -> None:
        self.now_s += 1.0
        self.book.turn_ends(one, self.now_s, kv_tokens=kv, ends=() if tip is None else (tip, tip + 100))

    @rule(
        number=st.integers(0, 9),
        worker=st.sampled_from([D0, D1]),
        kv=st.integers(0, 500),
        has_name=st.booleans(),
        end=st.none() | st.integers(0, 30),
    )
    def is_told(self, number: int, worker: WorkerId, kv: int, has_name: bool, end: int | None) -> None:
        self.now_s += 1.0
        conversation_id = ConversationId(number + 10 * has_name)
        key = number if has_name else None
        self.book.told(conversation_id, worker, self.now_s, label_key=key, end=end, kv_tokens=kv, turns=1)

    @rule(worker=st.sampled_from([D0, D1]))
    def worker_is_lost(self, worker: WorkerId) -> None:
        self.book.lose(worker)

    @rule(tokens=st.integers(1, 1000), worker=st.sampled_from([D0, D1]))
    def room_is_made(self, tokens: int, worker: WorkerId) -> None:
        held = self.book.held_tokens(worker)
        found = self.book.idle(worker, tokens, before_s=self.now_s)
        for one in found:
            assert not one.under_way
            self.book.chill(one)
        if found:
            assert held - self.book.held_tokens(worker) >= tokens

    @rule(age_s=st.floats(0.0, 20.0))
    def time_passes(self, age_s: float) -> None:
        self.book.expire(self.now_s - age_s)

    @invariant()
    def homes_are_sums(self) -> None:
        held: Counter[WorkerId] = Counter()
        residents: Counter[WorkerId] = Counter()
        for one in self.book:
            if not one.is_cold:
                held[one.worker_id] += one.kv_tokens
                residents[one.worker_id] += 1
        for worker in (D0, D1):
            assert self.book.held_tokens(worker) == held[worker]
            assert self.book.residents(worker) == residents[worker]

    @invariant()
    def memory_is_bounded(self) -> None:
        assert len(self.book) <= self.book.capacity
        alive = {one.conversation_id for one in self.book}
        assert set(self.book.tips.values()) <= alive
        assert set(self.book.labels.values()) <= alive
        assert len(self.book.tips) <= MAX_TIPS * len(alive)


TestAnyCourse = pytest.mark.filterwarnings("default")(AnyCourse.TestCase)
TestAnyCourse.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
