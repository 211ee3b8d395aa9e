"""Where responses are kept, and that whoever goes on from one gets there in every mode."""

from collections import OrderedDict
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gateway.core.conversation.facts import ConversationFacts, TurnKind
from gateway.core.conversation.identity import ConversationId, ends_of, response_end
from gateway.core.conversation.responses import MAX_NEW, ResponseHomes
from gateway.core.conversation.rules import ConversationRules, Mode, Pinning
from gateway.core.events import Dispatched, ResponseTold, WorkerDown, WorkerDraining
from gateway.core.hashing import hash64
from gateway.core.path.rules import AlwaysLocal
from gateway.core.policy import Policy
from gateway.core.router import Router
from gateway.core.types import Decision, Endpoint, OutcomeKind, Refusal, RefusalKind, RequestFacts, WorkerId
from tests.core.factories import COSTS, facts, finished, routed, router, worker

WORKERS = [WorkerId(f"d{number}") for number in range(12)]
MODES: list[dict[str, Any]] = [
    {"mode": Mode.CONSERVE},
    {"mode": Mode.AFFINITY, "pinning": Pinning.HASH},
    {"mode": Mode.AFFINITY, "pinning": Pinning.LOAD},
    {"mode": Mode.OFF},
]


def fleet(*, capacity: int = 100, max_candidates: int | None = None, **rules: Any) -> Router:
    conversation = ConversationRules(capacity=capacity, **rules)
    policy = Policy(path=AlwaysLocal(), costs=COSTS, conversation=conversation, max_candidates=max_candidates)
    return router(*(worker(name, kv_total_blocks=1000) for name in WORKERS), policy=policy)


def ask(name: str, *, after: str | None = None, tenant: int = 0, label: str | None = None) -> RequestFacts:
    """A request of the Responses API; every one has its own words."""
    said = ConversationFacts(response_id=after, tenant=tenant, label=label, turns=(hash64(name),))
    return facts(name, tokens=100, endpoint=Endpoint.RESPONSES, conversation=said, max_output_tokens=10)


def serve(of: Router, about: RequestFacts, response_id: str | None, *, now_s: float = 0.0, **outcome: Any) -> Decision:
    decision = routed(of.submit(about, now_s))
    of.observe(Dispatched(at_s=now_s, decision_id=decision.decision_id))
    of.observe(finished(decision, at_s=now_s, response_id=response_id, **outcome))
    return decision


class TestHomes:
    def test_a_full_one_forgets_what_was_used_longest_ago(self) -> None:
        homes = ResponseHomes(2)
        homes.made(1, WORKERS[0])
        homes.made(2, WORKERS[0])
        homes.used(1)
        homes.made(3, WORKERS[1])
        assert [homes.home(end) for end in (1, 2, 3)] == [WORKERS[0], None, WORKERS[1]]
        homes.capacity = 1
        assert (len(homes), homes.home(3)) == (1, WORKERS[1])

    def test_those_made_here_are_left_to_be_told(self) -> None:
        homes = ResponseHomes(5)
        homes.made(1, WORKERS[0])
        homes.told(2, WORKERS[1])
        assert (list(homes.new), homes.home(2)) == ([1], WORKERS[1])
        for end in range(2 * MAX_NEW):
            homes.made(end, WORKERS[0])
        assert len(homes.new) == MAX_NEW

    def test_an_end_is_of_its_id_and_its_tenant(self) -> None:
        ends = {response_end(name, tenant) for name in ("resp_1", "resp_2") for tenant in (0, 1, 2**64 - 1)}
        assert len(ends) == 6
        assert all(0 <= end < 2**64 for end in ends)
        # A fixed value: replicas of other releases share it.
        assert response_end("resp_1", 5) == 6175761165194183758

    def test_the_ends_of_a_turn(self) -> None:
        plain, named = ConversationFacts(turns=(7, 8)), ConversationFacts(label="x=a", turns=(7,), tenant=3)
        assert ends_of(plain, None) == (8,)
        assert ends_of(plain, "r") == (8, response_end("r", 0))
        assert ends_of(named, None) == ()
        assert ends_of(named, "r") == (response_end("r", 3),)
        assert ends_of(ConversationFacts(turns=(7,), response_id="q"), "r") == (response_end("r", 0),)


class AnyCourse(RuleBasedStateMachine):
    """Against a plain model: what is remembered is the newest of what was made and not lost."""

    def __init__(self) -> None:
        super().__init__()
        self.homes = ResponseHomes(5)
        self.model: OrderedDict[int, WorkerId] = OrderedDict()

    @rule(end=st.integers(0, 12), worker_id=st.sampled_from(WORKERS))
    def made(self, end: int, worker_id: WorkerId) -> None:
        self.homes.made(end, worker_id)
        self.model.pop(end, None)
        self.model[end] = worker_id
        if len(self.model) > 5:
            self.model.popitem(last=False)

    @rule(end=st.integers(0, 12))
    def used(self, end: int) -> None:
        self.homes.used(end)
        if end in self.model:
            self.model.move_to_end(end)

    @rule(worker_id=st.sampled_from(WORKERS))
    def lost(self, worker_id: WorkerId) -> None:
        self.homes.lose(worker_id)
        self.model = OrderedDict((end, home) for end, home in self.model.items() if home != worker_id)

    @invariant()
    def they_agree(self) -> None:
        assert len(self.homes) == len(self.model)
        assert [self.homes.home(end) for end in range(13)] == [self.model.get(end) for end in range(13)]


TestAnyCourse = pytest.mark.filterwarnings("default")(AnyCourse.TestCase)
TestAnyCourse.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("rules", MODES, ids=str)
class TestRouting:
    def test_a_chain_stays_on_the_worker_that_keeps_it(self, rules: dict[str, Any], large: bool) -> None:
        of = fleet(max_candidates=8 if large else None, **rules)
        firsts = [serve(of, ask(f"a{number}"), f"resp_{number}_0") for number in range(20)]
        assert len({first.decode_worker for first in firsts}) > 1
        for step in range(3):
            for number, first in enumerate(firsts):
                # Another label each time: what the worker keeps goes before what the client calls it.
                about = ask(f"{number}/{step}", after=f"resp_{number}_{step}", label=f"x={number}{step}")
                went = serve(of, about, f"resp_{number}_{step + 1}")
                assert (went.decode_worker, went.pinned) == (first.decode_worker, True)
                assert f"the response that it goes on from is kept on {first.decode_worker}" in went.words

    def test_a_preview_says_the_same(self, rules: dict[str, Any], large: bool) -> None:
        of = fleet(max_candidates=8 if large else None, **rules)
        first = serve(of, ask("a"), "resp_a")
        seen = of.preview(ask("b", after="resp_a"), 0.0)
        assert isinstance(seen, Decision)
        assert seen.decode_worker == first.decode_worker

    def test_another_tenants_response_pins_nothing(self, rules: dict[str, Any], large: bool) -> None:
        of = fleet(max_candidates=8 if large else None, **rules)
        serve(of, ask("a", tenant=5), "resp_a")
        went = routed(of.submit(ask("b", after="resp_a", tenant=6), 0.0))
        assert "is kept on" not in went.words

    def test_who_failed_it_is_not_replaced_by_one_that_does_not_know_it(
        self, rules: dict[str, Any], large: bool
    ) -> None:
        of = fleet(max_candidates=8 if large else None, **rules)
        first = serve(of, ask("a"), "resp_a")
        again = of.submit(ask("b", after="resp_a"), 0.0, exclude=frozenset({first.decode_worker}), attempt=2)
        assert isinstance(again, Refusal)
        assert again.kind is RefusalKind.EXCLUDED_ALL
        others = frozenset(WORKERS) - {first.decode_worker}
        assert isinstance(of.submit(ask("c", after="resp_a"), 0.0, exclude=others, attempt=2), Decision)

    @pytest.mark.parametrize("leaves", [WorkerDown, WorkerDraining])
    def test_where_its_worker_takes_no_requests_it_goes_elsewhere(
        self, rules: dict[str, Any], large: bool, leaves: Any
    ) -> None:
        of = fleet(max_candidates=8 if large else None, **rules)
        first = serve(of, ask("a"), "resp_a")
        of.observe(leaves(at_s=1.0, worker_id=first.decode_worker))
        went = routed(of.submit(ask("b", after="resp_a"), 1.0))
        assert went.decode_worker != first.decode_worker
        assert (of.conversations.kept_on(ask("b", after="resp_a")) is None) is (leaves is WorkerDown)


@pytest.mark.parametrize("rules", MODES, ids=str)
def test_what_another_replica_has_seen_made_is_gone_on_from(rules: dict[str, Any]) -> None:
    of = fleet(**rules)
    end = response_end("resp_a", 5)
    for worker_id in (WorkerId("stranger"), WORKERS[7]):
        of.observe(ResponseTold(at_s=0.0, end=end, worker_id=worker_id, conversation_id=None))
    assert len(of.conversations.responses) == 1
    went = routed(of.submit(ask("b", after="resp_a", tenant=5), 0.0))
    assert (went.decode_worker, went.pinned) == (WORKERS[7], True)
    assert not of.conversations.responses.new


def test_it_is_a_turn_of_the_conversation_that_was_told() -> None:
    of = fleet(**MODES[0])
    first = serve(of, ask("a"), None)
    (known,) = of.conversations.book
    for conversation_id in (known.conversation_id, ConversationId(1)):
        told = ResponseTold(
            at_s=0.0,
            end=response_end(f"resp_{conversation_id}", 0),
            worker_id=first.decode_worker,
            conversation_id=conversation_id,
        )
        of.observe(told)
    went = routed(of.submit(ask("b", after=f"resp_{known.conversation_id}"), 0.0))
    assert (went.conversation, went.turn) == (first.conversation, TurnKind.NEXT)
    other = routed(of.submit(ask("c", after="resp_1"), 0.0))
    assert (other.conversation == first.conversation, other.decode_worker) == (False, first.decode_worker)


def test_a_worker_that_left_while_it_answered_keeps_nothing() -> None:
    of = fleet()
    first = routed(of.submit(ask("a"), 0.0))
    of.observe(Dispatched(at_s=0.0, decision_id=first.decision_id))
    of.observe(WorkerDown(at_s=1.0, worker_id=first.decode_worker))
    of.observe(finished(first, at_s=2.0, response_id="resp_a"))
    assert len(of.conversations.responses) == 0


def test_an_answer_whose_client_left_may_be_kept_and_is_found() -> None:
    of = fleet(mode=Mode.OFF)
    first = serve(of, ask("a"), "resp_a", kind=OutcomeKind.CANCELLED)
    assert routed(of.submit(ask("b", after="resp_a"), 0.0)).decode_worker == first.decode_worker


@pytest.mark.parametrize("label", [None, "x=a"])
@pytest.mark.parametrize("rules", [MODES[0], MODES[2]], ids=str)
def test_a_turn_belongs_to_the_conversation_of_its_response(rules: dict[str, Any], label: str | None) -> None:
    of = fleet(**rules)
    first = serve(of, ask("a", label=label), "resp_1", output_tokens=5, input_tokens=100)
    second = serve(of, ask("b", after="resp_1", label=label), "resp_2", output_tokens=5, input_tokens=200)
    fork = serve(of, ask("c", after="resp_1", label=label), None)
    third = serve(of, ask("d", after="resp_2", label=label), "resp_3")
    assert {one.conversation for one in (second, fork, third)} == {first.conversation}
    assert {one.turn for one in (second, fork, third)} == {TurnKind.NEXT}
    other = routed(of.submit(ask("e", after="resp_2", tenant=9, label=label), 0.0))
    assert other.conversation != first.conversation


def test_a_smaller_capacity_is_adopted() -> None:
    of = fleet()
    for number in range(10):
        serve(of, ask(f"a{number}"), f"resp_{number}")
    of.adopt(Policy(conversation=ConversationRules(capacity=3)))
    assert len(of.conversations.responses) == 3
