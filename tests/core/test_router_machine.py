"""Two routers that are told the same, under any legal sequence of calls.

Their answers must be equal byte for byte, no call may crash, and the books must balance at every step.
"""

from collections import Counter
from dataclasses import replace
from random import Random

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from gateway.core.conversation.facts import ConversationFacts
from gateway.core.conversation.rules import ConversationRules, Mode, Pinning
from gateway.core.events import (
    Dispatched,
    Event,
    Finished,
    FirstToken,
    Prefilled,
    PrefillLost,
    WorkerDown,
    WorkerDraining,
    WorkerProbed,
    WorkerSampled,
    WorkerUp,
)
from gateway.core.hashing import hash64
from gateway.core.ledger import Stage
from gateway.core.path.base import PathPolicy
from gateway.core.path.rules import AlwaysLocal, AlwaysRemote, DynamoMode, DynamoRule, LlmdRule
from gateway.core.policy import Policy
from gateway.core.router import Router
from gateway.core.types import (
    Decision,
    DecisionId,
    Endpoint,
    Outcome,
    OutcomeKind,
    Path,
    Refusal,
    RequestFacts,
    RequestId,
    Role,
    WorkerId,
    WorkerSample,
    WorkerSpec,
)
from gateway.core.waiting import Ticket, Wait

COUNT = 2**63 - 1
"""The largest integer that the wire lets through."""
worker_ids = st.sampled_from([WorkerId(f"w{i}") for i in range(5)])
models = st.sampled_from(["llama", "adapter"])
naturals = st.one_of(st.integers(0, 5_000), st.integers(0, COUNT))
seconds = st.one_of(st.none(), st.floats(0.0, 1e4))
block_chains = st.lists(st.integers(0, 5), max_size=6).map(
    lambda blocks: tuple(hash64(repr(blocks[: i + 1])) for i in range(len(blocks)))
)

policies: st.SearchStrategy[PathPolicy] = st.sampled_from(
    [
        AlwaysLocal(),
        AlwaysRemote(),
        DynamoRule(),
        DynamoRule(mode=DynamoMode.ISL_OR_LOAD, prefill_busy_threshold=0.5, decode_busy_threshold=0.9),
        LlmdRule(non_cached_tokens=256),
    ]
)
conversation_rules = st.builds(
    ConversationRules,
    mode=st.sampled_from(Mode),
    pinning=st.sampled_from(Pinning),
    capacity=st.integers(1, 4),
    headroom_tokens=st.integers(0, 512),
    evict_after_s=st.none() | st.floats(0.0, 10.0),
    tool_wait_s=st.floats(0.0, 10.0),
    max_wait_s=st.floats(0.0, 300.0),
    rebalance_ratio=st.none() | st.floats(0.1, 1.0),
)
specs = st.builds(
    WorkerSpec,
    worker_id=worker_ids,
    url=st.just("http://w:8000"),
    role=st.sampled_from(Role),
    models=st.sampled_from([("llama",), ("llama", "adapter")]),
    kv_block_tokens=st.none() | st.integers(1, 64),
    kv_total_blocks=st.none() | st.integers(1, 10_000),
    max_batched_tokens=st.none() | st.integers(1, 16_384),
)
samples = st.builds(
    WorkerSample,
    at_s=st.just(0.0),
    running=st.none() | naturals,
    waiting=st.none() | naturals,
    kv_used_ratio=st.none() | st.floats(0.0, 2.0**53),
    kv_block_tokens=st.none() | st.integers(1, 10**15),
    kv_total_blocks=st.none() | st.integers(1, 10**15),
)
requests = st.builds(
    RequestFacts,
    request_id=st.uuids().map(str).map(RequestId),
    endpoint=st.sampled_from(Endpoint),
    model=models | st.just("unknown"),
    prompt_bytes=st.integers(0, 2**40),
    prompt_token_ids=st.none() | naturals,
    block_chains=st.lists(block_chains, max_size=3).map(tuple),
    prompts=st.integers(1, 3),
    media_parts=st.integers(0, 2),
    max_output_tokens=st.none() | st.integers(1, COUNT),
    choices=st.one_of(st.integers(1, 3), st.integers(1, COUNT)),
    prompt_logprobs=st.booleans(),
    conversation=st.none()
    | st.builds(
        ConversationFacts,
        label=st.none() | st.sampled_from(["x-session-id=alice", "user=bob"]),
        is_final=st.booleans(),
        turns=st.lists(st.integers(0, 2), max_size=3).map(tuple),
    ),
    slo_ttft_s=seconds,
)
outcomes = st.builds(
    Outcome,
    kind=st.sampled_from(OutcomeKind),
    status=st.just(200),
    duration_s=st.floats(0.0, 1e4),
    input_tokens=st.none() | naturals,
    output_tokens=st.none() | naturals,
    attained=st.none() | st.booleans(),
)


def encoded(answer: object) -> bytes:
    return msgspec.json.encode(answer, order="deterministic")


class RouterMachine(RuleBasedStateMachine):
    live = Bundle("live")

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.open: dict[DecisionId, Decision] = {}
        self.waiting: dict[Ticket, RequestFacts] = {}
        self.stage: dict[DecisionId, Stage] = {}
        self.specs: dict[WorkerId, WorkerSpec] = {}
        self.draining: set[WorkerId] = set()
        self.seen: set[DecisionId] = set()

    @initialize(
        path=policies, rules=conversation_rules, specs=st.lists(specs, max_size=5), index_blocks=st.integers(1, 20)
    )
    def begin(self, path: PathPolicy, rules: ConversationRules, specs: list[WorkerSpec], index_blocks: int) -> None:
        policy = Policy(path=path, conversation=rules, index_blocks_per_worker=index_blocks)
        self.routers = [Router(policy, rng=Random(7), instance="gw") for _ in range(2)]
        for spec in specs:
            self.join(spec)

    def tell(self, event: Event) -> None:
        for each in self.routers:
            each.observe(event)

    # -- the fleet ---------------------------------------------------------------------------------------------------

    @rule(spec=specs)
    def join(self, spec: WorkerSpec) -> None:
        self.specs[spec.worker_id] = spec
        self.draining.discard(spec.worker_id)
        self.tell(WorkerUp(at_s=self.now_s, spec=spec))

    @rule(worker_id=worker_ids)
    def leave(self, worker_id: WorkerId) -> None:
        self.specs.pop(worker_id, None)
        self.draining.discard(worker_id)
        self.tell(WorkerDown(at_s=self.now_s, worker_id=worker_id))

    @rule(worker_id=worker_ids)
    def drain(self, worker_id: WorkerId) -> None:
        self.draining |= {worker_id} & set(self.specs)
        self.tell(WorkerDraining(at_s=self.now_s, worker_id=worker_id))

    @rule(worker_id=worker_ids, sample=samples)
    def scrape(self, worker_id: WorkerId, sample: WorkerSample) -> None:
        self.tell(WorkerSampled(at_s=self.now_s, worker_id=worker_id, sample=replace(sample, at_s=self.now_s)))

    @rule(worker_id=worker_ids, healthy=st.booleans(), late=st.booleans(), times=st.integers(1, 6))
    def probe(self, worker_id: WorkerId, healthy: bool, late: bool, times: int) -> None:
        timed_out = late and not healthy
        for _ in range(times):
            self.tell(WorkerProbed(at_s=self.now_s, worker_id=worker_id, healthy=healthy, timed_out=timed_out))

    @rule(passed_s=st.floats(0.0, 200.0))
    def tick(self, passed_s: float) -> None:
        self.now_s += passed_s
        for each in self.routers:
            each.tick(self.now_s)

    # -- requests ----------------------------------------------------------------------------------------------------

    @rule(target=live, facts=requests, exclude=st.frozensets(worker_ids, max_size=2), attempt=st.integers(1, 3))
    def submit(self, facts: RequestFacts, exclude: frozenset[WorkerId], attempt: int) -> object:
        previewed = self.routers[0].preview(facts, self.now_s, exclude=exclude, attempt=attempt)
        one, other = (each.submit(facts, self.now_s, exclude=exclude, attempt=attempt) for each in self.routers)
        assert encoded(one) == encoded(other)
        if isinstance(one, Wait):
            assert attempt == 1
            self.waiting[one.ticket] = facts
            return multiple()
        assert encoded(one) == encoded(previewed)
        if isinstance(one, Refusal):
            return multiple()
        self._open(one, facts, exclude)
        return one.decision_id

    @rule(target=live)
    def release(self) -> object:
        one, other = (each.release(self.now_s) for each in self.routers)
        assert encoded(one) == encoded(other)
        opened = []
        for ticket, routed in one:
            facts = self.waiting.pop(ticket)
            if isinstance(routed, Decision):
                self._open(routed, facts, frozenset())
                opened.append(routed.decision_id)
        return multiple(*opened)

    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        if self.waiting:
            ticket = data.draw(st.sampled_from(sorted(self.waiting)))
            del self.waiting[ticket]
            for each in self.routers:
                each.give_up(ticket)

    def _open(self, one: Decision, facts: RequestFacts, exclude: frozenset[WorkerId]) -> None:
        self._check(one, facts, exclude)
        self.open[one.decision_id] = one
        self.stage[one.decision_id] = Stage.RESERVED

    def _check(self, decision: Decision, facts: RequestFacts, exclude: frozenset[WorkerId]) -> None:
        assert decision.decision_id not in self.seen
        self.seen.add(decision.decision_id)
        assert (decision.prefill_worker is None) == (decision.path is Path.LOCAL)
        assert decision.prefill_worker != decision.decode_worker
        assert self.specs[decision.decode_worker].role.decodes
        chosen = {decision.decode_worker}
        if decision.prefill_worker is not None:
            assert self.specs[decision.prefill_worker].role.prefills
            chosen.add(decision.prefill_worker)
        assert not chosen & (exclude | self.draining)
        assert all(facts.model in self.specs[worker_id].models for worker_id in chosen)
        counts = decision.features
        assert 0 <= counts.prefill_isl_tokens <= counts.isl_tokens
        assert 0 <= counts.decode_isl_tokens <= counts.isl_tokens

    def _advance(self, decision_id: DecisionId, event: Event, to: Stage) -> None:
        if self.stage[decision_id] < to:
            self.tell(event)
            self.stage[decision_id] = to

    @rule(decision_id=live)
    def dispatch(self, decision_id: DecisionId) -> None:
        event = Dispatched(at_s=self.now_s, decision_id=decision_id)
        self._advance(decision_id, event, Stage.DISPATCHED)

    @rule(decision_id=live, is_lost=st.booleans(), blames=st.booleans())
    def end_prefill(self, decision_id: DecisionId, is_lost: bool, blames: bool) -> None:
        prefiller = self.open[decision_id].prefill_worker
        if prefiller is None:
            return
        blame = prefiller if blames else None
        event: Event = Prefilled(at_s=self.now_s, decision_id=decision_id)
        if is_lost:
            event = PrefillLost(at_s=self.now_s, decision_id=decision_id, blame=blame)
        self._advance(decision_id, event, Stage.PREFILLED)

    @rule(decision_id=live)
    def first_token(self, decision_id: DecisionId) -> None:
        event = FirstToken(at_s=self.now_s, decision_id=decision_id)
        self._advance(decision_id, event, Stage.STREAMING)

    @rule(decision_id=consumes(live), outcome=outcomes, blames=st.sampled_from([None, "prefill", "decode"]))
    def finish(self, decision_id: DecisionId, outcome: Outcome, blames: str | None) -> None:
        decision = self.open.pop(decision_id)
        blame = {None: None, "prefill": decision.prefill_worker, "decode": decision.decode_worker}[blames]
        self.tell(Finished(at_s=self.now_s, decision_id=decision_id, outcome=outcome, blame=blame))

    @rule(decision_id=consumes(live), blames=st.booleans())
    def abort(self, decision_id: DecisionId, blames: bool) -> None:
        decision = self.open.pop(decision_id)
        for each in self.routers:
            each.abort(decision_id, self.now_s, blame=decision.decode_worker if blames else None)

    # -- the books ---------------------------------------------------------------------------------------------------

    @invariant()
    def views_are_as_if_they_were_built_now(self) -> None:
        if not hasattr(self, "routers"):
            return
        for each in self.routers:
            kept = each.fleet.views([state.spec.worker_id for state in each.fleet], self.now_s)
            for state in each.fleet:
                state.view = None
            assert each.fleet.views([state.spec.worker_id for state in each.fleet], self.now_s) == kept

    @invariant()
    def requests_in_flight_are_those_that_are_open(self) -> None:
        if not hasattr(self, "routers"):
            return
        expected: Counter[WorkerId] = Counter()
        for decision_id, decision in self.open.items():
            expected[decision.decode_worker] += 1
            if decision.prefill_worker is not None and self.stage[decision_id] < Stage.PREFILLED:
                expected[decision.prefill_worker] += 1
        for each in self.routers:
            assert len(each.ledger) == len(self.open)
            for i in range(5):
                worker_id = WorkerId(f"w{i}")
                tally = each.ledger.tally(worker_id)
                assert tally.requests == expected[worker_id]
                assert min(tally.prefill_tokens, tally.kv_tokens) >= 0

    @invariant()
    def conversations_have_as_many_turns_under_way_as_are_open(self) -> None:
        for each in getattr(self, "routers", ()):
            held = [found for one in self.open if (found := each.ledger.get(one)) and found.conversation is not None]
            under_way = Counter(id(found.conversation) for found in held)
            for conversation in each.conversations.book:
                assert conversation.under_way == under_way[id(conversation)]
            assert len(each.waiting) == len(self.waiting)

    def teardown(self) -> None:
        for decision_id in self.open:
            for each in getattr(self, "routers", ()):
                each.abort(decision_id, self.now_s)
                assert each.ledger.get(decision_id) is None
        for each in getattr(self, "routers", ()):
            assert len(each.ledger) == 0
            assert each.ledger._tallies == {}
            assert [worker_id for worker_id in self.specs if each.health.get(worker_id).trials] == []
            assert set(each.prefix._holdings) == set(self.specs)


TestTwinRouters = RouterMachine.TestCase
TestTwinRouters.settings = settings(max_examples=60, stateful_step_count=40)
