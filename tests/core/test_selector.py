"""Which path and which workers a request gets, in small fleets, through the router's own door."""

from collections import Counter
from typing import Any

import pytest

from gateway.core.conversation.facts import ConversationFacts
from gateway.core.events import Dispatched, Prefilled, WorkerDown, WorkerDraining, WorkerProbed, WorkerUp
from gateway.core.path.rules import AlwaysLocal, AlwaysRemote, DynamoRule
from gateway.core.placement import MAX_CANDIDATES, Placement
from gateway.core.policy import Policy
from gateway.core.router import Router
from gateway.core.types import (
    Decision,
    Path,
    Reason,
    Refusal,
    RefusalKind,
    RequestFacts,
    Role,
    SloDefaults,
    SloTarget,
    WorkerId,
)
from tests.core.factories import SLO, facts, finished, routed, router, scrape, worker

P0, P1 = worker("p0", Role.PREFILL), worker("p1", Role.PREFILL)
D0, D1, D2 = worker("d0"), worker("d1"), worker("d2")
REMOTE, LOCAL = Policy(path=AlwaysRemote()), Policy(path=AlwaysLocal())
CHAIN = tuple(range(100, 116))


def submit(to: Router, about: RequestFacts | None = None, now_s: float = 0.0, **how: Any) -> Decision:
    return routed(to.submit(about or facts(tokens=4096), now_s, **how))


def ids(*names: str) -> frozenset[WorkerId]:
    return frozenset(map(WorkerId, names))


def serve(of: Router, about: RequestFacts, now_s: float = 0.0) -> Decision:
    """Route a request and let it end well."""
    decision = submit(of, about, now_s)
    of.observe(Dispatched(at_s=now_s, decision_id=decision.decision_id))
    if decision.path is Path.REMOTE:
        of.observe(Prefilled(at_s=now_s, decision_id=decision.decision_id))
    of.observe(finished(decision, at_s=now_s))
    return decision


def take_down(of: Router, *names: str) -> None:
    for name in names:
        for _ in range(3):
            of.observe(WorkerProbed(at_s=0.0, worker_id=WorkerId(name), healthy=False))


def eject(of: Router, *names: str, now_s: float = 0.0) -> None:
    for name in names:
        for _ in range(5):
            of.health.failed(WorkerId(name), now_s)


class TestPath:
    def test_a_long_uncached_prompt_prefills_remotely(self) -> None:
        decision = submit(router(P0, D0))
        assert (decision.path, decision.reason) == (Path.REMOTE, Reason.LONG_EFFECTIVE_ISL)
        assert (decision.prefill_worker, decision.decode_worker) == ("p0", "d0")
        assert decision.policy == "dynamo"

    def test_the_next_turn_of_a_conversation_prefills_where_its_cache_is(self) -> None:
        of = router(P0, D0, D1)
        first = serve(of, facts("turn 1", tokens=1024, chain=CHAIN))
        assert first.path is Path.REMOTE
        second = submit(of, facts("turn 2", tokens=1124, chain=(*CHAIN, 1)))
        assert (second.path, second.reason) == (Path.LOCAL, Reason.SHORT_EFFECTIVE_ISL)
        assert (second.prefill_worker, second.decode_worker) == (None, first.decode_worker)
        assert second.features.decode_isl_tokens == 100

    def test_features_count_what_each_side_would_still_compute(self) -> None:
        of = router(P0, P1, D0, D1)
        first = serve(of, facts(tokens=1024, chain=CHAIN))
        again = submit(of, facts(tokens=2000, chain=(*CHAIN, 1, 2)))
        assert again.decode_worker == first.decode_worker
        assert (again.features.isl_tokens, again.features.decode_isl_tokens) == (2000, 976)
        assert (again.decode_hit_tokens, again.prefill_hit_tokens) == (1024, 1024)
        assert again.features.prefill_isl_tokens == 976

    def test_without_a_prefill_pool_nothing_is_cached_there(self) -> None:
        decision = submit(router(D0))
        assert (decision.features.prefill_isl_tokens, decision.prefill_hit_tokens) == (4096, 0)
        assert decision.prefill_candidates == ()

    def test_a_local_decision_still_shows_the_prefill_pool_that_it_passed_over(self) -> None:
        decision = submit(router(P0, D0, policy=LOCAL))
        assert decision.prefill_worker is None
        assert [candidate.worker_id for candidate in decision.prefill_candidates] == ["p0"]

    def test_several_prompts_hit_with_the_sum_of_their_chains(self) -> None:
        of = router(D0)
        serve(of, facts(tokens=128, chain=(1, 2)))
        serve(of, facts(tokens=64, chain=(7,)))
        both = facts(tokens=320, prompts=2, block_chains=((1, 2, 3), (7, 8)))
        assert submit(of, both).decode_hit_tokens == 192

    def test_the_prompts_of_one_request_do_not_hit_beyond_its_length(self) -> None:
        of = router(D0)
        serve(of, facts(tokens=128, chain=(1, 2)))
        twice = facts(tokens=100, prompts=2, block_chains=((1, 2), (1, 2)))
        assert submit(of, twice).decode_hit_tokens == 100


class TestForcedLocal:
    """Rules of eligibility come before the policy, whatever that says."""

    @pytest.mark.parametrize(
        ("about", "reason"),
        [
            (facts(tokens=4096, choices=2), Reason.RULE_SEVERAL_CHOICES),
            (facts(tokens=4096, prompts=2), Reason.RULE_SEVERAL_PROMPTS),
            (facts(tokens=4096, prompt_logprobs=True), Reason.RULE_PROMPT_LOGPROBS),
            (facts(tokens=4096, echo_logprobs=True), Reason.RULE_ECHO_LOGPROBS),
            (facts(tokens=15), Reason.RULE_UNDER_ONE_BLOCK),
        ],
        ids=lambda value: value if isinstance(value, Reason) else "",
    )
    def test_by_the_request(self, about: RequestFacts, reason: Reason) -> None:
        decision = submit(router(P0, D0, policy=REMOTE), about)
        assert (decision.path, decision.reason, decision.prefill_worker) == (Path.LOCAL, reason, None)

    def test_by_the_fleet(self) -> None:
        for of in (router(D0, policy=REMOTE), router(worker("b0", Role.BOTH), policy=REMOTE)):
            assert submit(of).reason is Reason.RULE_NO_PREFILLER

    def test_a_prefill_pool_that_is_ejected_sends_requests_local_instead_of_panicking(self) -> None:
        of = router(P0, D0, policy=REMOTE)
        eject(of, "p0")
        assert submit(of).reason is Reason.RULE_NO_PREFILLER

    def test_no_prompt_is_prefilled_for_a_decode_worker_that_only_panic_picked(self) -> None:
        of = router(P0, D0, policy=REMOTE)
        eject(of, "d0")
        decision = submit(of)
        assert (decision.decode_worker, decision.path, decision.reason) == (
            "d0",
            Path.LOCAL,
            Reason.RULE_DECODE_EJECTED,
        )

    def test_a_decode_worker_on_trial_is_tried_on_the_policys_path_once_at_a_time(self) -> None:
        of = router(P0, D0, policy=REMOTE)
        eject(of, "d0")
        of.tick(10.0)
        assert submit(of).path is Path.REMOTE
        assert submit(of).reason is Reason.RULE_DECODE_EJECTED

    def test_one_block_is_that_of_the_decode_worker(self) -> None:
        for block_tokens, path in [(4096, Path.REMOTE), (4097, Path.LOCAL)]:
            of = router(P0, worker("d0", kv_block_tokens=block_tokens), policy=REMOTE)
            assert submit(of).path is path

    @pytest.mark.parametrize(("tokens", "path"), [(15, Path.LOCAL), (16, Path.REMOTE)])
    def test_an_unknown_block_is_taken_for_sixteen_tokens(self, tokens: int, path: Path) -> None:
        of = router(P0, worker("d0", kv_block_tokens=None), policy=REMOTE)
        assert submit(of, facts(tokens=tokens)).path is path


class TestRoles:
    def test_a_prefill_worker_never_decodes_and_a_decode_worker_never_prefills(self) -> None:
        of = router(P0, P1, D0, D1, policy=REMOTE)
        for i in range(40):
            decision = submit(of, facts(f"r{i}", tokens=4096))
            assert decision.decode_worker in ids("d0", "d1")
            assert decision.prefill_worker in ids("p0", "p1")

    @pytest.mark.parametrize("workers", [2, 3, 5])
    def test_workers_of_both_roles_never_send_a_prompt_to_themselves(self, workers: int) -> None:
        of = router(*(worker(f"b{i}", Role.BOTH) for i in range(workers)), policy=REMOTE)
        for i in range(40):
            decision = submit(of, facts(f"r{i}", tokens=4096))
            assert decision.path is Path.REMOTE
            assert decision.prefill_worker != decision.decode_worker

    def test_a_worker_of_both_roles_joins_either_pool(self) -> None:
        of = router(P0, worker("b0", Role.BOTH), policy=REMOTE)
        decision = submit(of)
        assert (decision.prefill_worker, decision.decode_worker) == ("p0", "b0")

    def test_an_adapter_goes_only_where_it_is_loaded(self) -> None:
        of = router(D0, worker("d1", models=("llama", "sql-adapter")), D2)
        assert {submit(of, facts(f"r{i}", tokens=64, model="sql-adapter")).decode_worker for i in range(20)} == {"d1"}


class TestPlacement:
    def test_equal_workers_share_the_requests(self) -> None:
        of = router(D0, D1, D2, policy=LOCAL)
        homes = Counter(submit(of, facts(f"r{i}", tokens=64)).decode_worker for i in range(300))
        assert set(homes.values()) == {100}

    def test_a_burst_between_two_scrapes_spreads(self) -> None:
        of = router(D0, D1, policy=LOCAL)
        for name in ("d0", "d1"):
            scrape(of, name, running=0, waiting=0, kv_used_ratio=0.0)
        homes = Counter(submit(of, facts(f"r{i}", tokens=64)).decode_worker for i in range(200))
        assert homes == {"d0": 100, "d1": 100}

    def test_load_that_others_put_on_a_worker_is_seen_in_its_sample(self) -> None:
        by_requests = Policy(path=AlwaysLocal(), decode_placement=Placement(weights=(("few_requests", 1.0),)))
        of = router(D0, D1, policy=by_requests)
        scrape(of, "d0", running=20, waiting=5)
        assert {submit(of, facts(f"r{i}", tokens=64)).decode_worker for i in range(10)} == {"d1"}

    def test_a_decision_records_the_best_candidates_only(self) -> None:
        of = router(*(worker(f"d{i}") for i in range(20)), *(worker(f"p{i}", Role.PREFILL) for i in range(20)))
        decision = submit(of)
        assert len(decision.decode_candidates) == len(decision.prefill_candidates) == MAX_CANDIDATES
        assert decision.decode_candidates[0].worker_id == decision.decode_worker
        totals = [candidate.total for candidate in decision.decode_candidates]
        assert totals == sorted(totals, reverse=True)

    def test_the_policys_weights_decide(self) -> None:
        by_kv = Policy(path=AlwaysLocal(), decode_placement=Placement(weights=(("kv_free", 1.0),)))
        of = router(D0, D1, policy=by_kv)
        scrape(of, "d0", running=0, kv_used_ratio=0.6)
        scrape(of, "d1", running=50, kv_used_ratio=0.2)
        assert submit(of).decode_worker == "d1"


class TestSessions:
    @staticmethod
    def _home(of: Router, session: str, turn: int = 0, **how: Any) -> Decision:
        return submit(of, facts(f"{session}-{turn}", tokens=64, session=session), **how)

    def test_a_session_stays_on_one_worker_whatever_the_load(self) -> None:
        of = router(D0, D1, D2, policy=LOCAL)
        decisions = [self._home(of, "alice", turn) for turn in range(30)]
        assert len({decision.decode_worker for decision in decisions}) == 1
        assert all(decision.pinned for decision in decisions)

    def test_a_request_without_a_session_is_not_pinned(self) -> None:
        of = router(D0, D1)
        assert not submit(of).pinned
        assert not submit(of, facts(tokens=4096, conversation=ConversationFacts(turns=(1, 2)))).pinned

    def test_sessions_spread_over_the_pool(self) -> None:
        of = router(D0, D1, D2, policy=LOCAL)
        homes = Counter(self._home(of, f"session {i}").decode_worker for i in range(600))
        assert min(homes.values()) > 150

    def test_a_lost_worker_moves_only_its_own_sessions(self) -> None:
        of = router(D0, D1, D2, policy=LOCAL)
        before = {name: self._home(of, name).decode_worker for name in map(str, range(60))}
        of.observe(WorkerDown(at_s=1.0, worker_id=WorkerId("d1")))
        after = {name: self._home(of, name, 1).decode_worker for name in before}
        assert {name for name in before if before[name] != after[name]} == {
            name for name, home in before.items() if home == "d1"
        }

    def test_two_routers_agree_on_a_sessions_home(self) -> None:
        one, other = router(D0, D1, D2), router(D2, D0, D1, instance="other")
        assert all(self._home(one, name).decode_worker == self._home(other, name).decode_worker for name in "abcdefgh")

    def test_a_pin_gives_way_to_an_exclusion(self) -> None:
        of = router(D0, D1, policy=LOCAL)
        home = self._home(of, "alice").decode_worker
        retry = self._home(of, "alice", 1, exclude=frozenset({home}), attempt=2)
        assert retry.decode_worker != home
        assert retry.pinned

    def test_a_pinned_decision_still_shows_the_scores(self) -> None:
        of = router(D0, D1, policy=LOCAL)
        assert len(self._home(of, "alice").decode_candidates) == 2


class TestRetries:
    def test_a_worker_that_failed_the_request_is_not_asked_again(self) -> None:
        of = router(P0, P1, D0, D1, policy=REMOTE)
        first = submit(of)
        assert first.prefill_worker is not None
        retry = submit(of, exclude=frozenset({first.prefill_worker, first.decode_worker}), attempt=2)
        assert (first.attempt, retry.attempt) == (1, 2)
        assert {first.prefill_worker, retry.prefill_worker} == {"p0", "p1"}
        assert {first.decode_worker, retry.decode_worker} == {"d0", "d1"}

    def test_without_another_prefill_worker_a_retry_goes_local(self) -> None:
        retry = submit(router(P0, D0, policy=REMOTE), exclude=ids("p0"), attempt=2)
        assert (retry.path, retry.reason) == (Path.LOCAL, Reason.RULE_NO_PREFILLER)

    def test_without_another_decode_worker_a_retry_is_refused(self) -> None:
        refusal = router(D0).submit(facts(), 0.0, exclude=ids("d0"), attempt=2)
        assert isinstance(refusal, Refusal)
        assert refusal.kind is RefusalKind.EXCLUDED_ALL


class TestRefusals:
    @staticmethod
    def _kind(of: Router, **about: Any) -> RefusalKind:
        answer = of.submit(facts("r9", **about), 0.0)
        assert isinstance(answer, Refusal)
        assert answer.request_id == "r9"
        return answer.kind

    def test_a_model_that_no_worker_serves_does_not_exist(self) -> None:
        assert self._kind(router(D0), model="gpt-9") is RefusalKind.MODEL_NOT_FOUND

    def test_an_empty_fleet_is_out_of_service_and_not_out_of_models(self) -> None:
        assert self._kind(router()) is RefusalKind.NO_DECODE_WORKER

    def test_prefill_workers_alone_cannot_serve(self) -> None:
        assert self._kind(router(P0)) is RefusalKind.NO_DECODE_WORKER

    def test_workers_whose_probes_fail_cannot_serve(self) -> None:
        of = router(P0, D0)
        take_down(of, "d0")
        assert self._kind(of) is RefusalKind.NO_DECODE_WORKER

    def test_a_refusal_takes_nothing(self) -> None:
        of = router(P0)
        self._kind(of)
        of.observe(WorkerUp(at_s=0.0, spec=D0))
        assert len(of.ledger) == 0
        assert submit(of).decision_id == "gw-1"


class TestHealth:
    def test_a_draining_worker_gets_no_new_requests_and_ends_its_old_ones(self) -> None:
        of = router(D0, D1, policy=LOCAL)
        held = [submit(of, facts(f"r{i}", tokens=64)) for i in range(2)]
        of.observe(WorkerDraining(at_s=1.0, worker_id=WorkerId("d0")))
        assert {submit(of, facts(f"s{i}", tokens=64)).decode_worker for i in range(6)} == {"d1"}
        for decision in held:
            of.observe(finished(decision, at_s=2.0))
        assert of.ledger.tally(WorkerId("d0")).requests == 0

    def test_a_draining_prefill_worker_gets_no_new_prompts(self) -> None:
        of = router(P0, P1, D0, policy=REMOTE)
        of.observe(WorkerDraining(at_s=1.0, worker_id=WorkerId("p0")))
        assert {submit(of, facts(f"r{i}", tokens=64)).prefill_worker for i in range(6)} == {"p1"}

    def test_an_ejected_worker_is_left_out_until_its_trial(self) -> None:
        of = router(D0, D1, policy=LOCAL)
        eject(of, "d0")
        assert {submit(of, facts(f"r{i}", tokens=64)).decode_worker for i in range(6)} == {"d1"}
        of.tick(10.0)
        # Idle, so it is the best, and it gets one request only until that has ended.
        trial = [submit(of, facts(f"t{i}", tokens=64), 10.0) for i in range(6)]
        assert Counter(decision.decode_worker for decision in trial) == {"d0": 1, "d1": 5}
        on_trial = next(decision for decision in trial if decision.decode_worker == "d0")
        of.observe(finished(on_trial, at_s=11.0))
        assert submit(of, facts("next", tokens=64), 11.0).decode_worker == "d0"

    def test_a_decode_pool_that_is_ejected_as_a_whole_serves_in_panic(self) -> None:
        of = router(D0)
        eject(of, "d0")
        assert submit(of).decode_worker == "d0"


def test_a_decision_carries_the_slo_that_it_will_be_judged_by() -> None:
    fast = SloTarget(name="fast", ttft_s=0.2, tpot_s=0.01)
    of = router(D0, policy=Policy(slo=SloDefaults(default=SLO, classes=(fast,))))
    assert submit(of, facts(slo_class="fast")).slo == fast
    assert submit(of, facts(slo_ttft_s=9.0)).slo == SloTarget(name="default", ttft_s=9.0, tpot_s=0.04)


def test_a_decision_names_its_policy_and_version() -> None:
    decision = submit(router(D0, policy=Policy(version="abc123", path=DynamoRule(name="tuned"))))
    assert (decision.policy, decision.policy_version) == ("tuned", "abc123")
