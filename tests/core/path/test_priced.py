"""Paths and routes by price, on an engine with round prices: see `factories.ENGINE`."""

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from gateway.core.calibration import Calibration
from gateway.core.conversation.rules import ConversationRules, Mode, Pinning
from gateway.core.events import Dispatched, FirstToken
from gateway.core.forecast import FleetCosts, Forecast
from gateway.core.path.base import PathPolicy, PathQuestion
from gateway.core.path.price import PriceWeights
from gateway.core.path.priced import JointPolicy, PricedPolicy
from gateway.core.path.rules import AlwaysLocal, AlwaysRemote
from gateway.core.policy import Policy
from gateway.core.router import Router
from gateway.core.types import Decision, Path, Reason, Role, SloTarget, WorkerId, WorkerView
from tests.core.factories import COSTS, SLO, decision, facts, finished, question, routed, router, view, worker

WEIGHTS = PriceWeights()
PRICED = PricedPolicy(baseline=AlwaysRemote(), weights=WEIGHTS)
JOINT = JointPolicy(baseline=AlwaysRemote(), weights=WEIGHTS)
BY_LOAD = ConversationRules(mode=Mode.AFFINITY, pinning=Pinning.LOAD)
BUSY = view("d0", role=Role.DECODE, inflight_requests=60, kv_tokens=60_000, kv_capacity_tokens=400_000)


def asked(decode: WorkerView, **changes: Any) -> PathQuestion:
    base = question(2000, prefill=view("p0", role=Role.PREFILL), decode=decode)
    return replace(base, **{"slo": SLO, "forecast": Forecast(COSTS, Calibration()), **changes})


def forecast_of(asking: PathQuestion) -> Forecast:
    assert asking.forecast is not None
    return asking.forecast


def path(policy: PricedPolicy, asking: PathQuestion) -> Path:
    return policy.choose(asking, Random(0)).path


def a_router(policy: PathPolicy, *, costs: FleetCosts | None = COSTS) -> Router:
    """Two prefill workers and two decode workers."""
    prefill = [worker(name, Role.PREFILL) for name in ("p0", "p1")]
    decode = [worker(name, Role.DECODE, kv_total_blocks=10_000) for name in ("d0", "d1")]
    return router(*prefill, *decode, policy=Policy(path=policy, costs=costs))


def submit(to: Router, name: str, *, now_s: float = 0.0, **changes: Any) -> Decision:
    return routed(to.submit(facts(name, tokens=2000, block_bytes=1600, **changes), now_s))


def test_an_idle_decode_worker_prefills_itself() -> None:
    assert path(PRICED, asked(view("d0", role=Role.DECODE))) is Path.LOCAL


def test_a_prefill_that_would_hold_up_a_large_batch_goes_elsewhere() -> None:
    assert path(PRICED, asked(BUSY)) is Path.REMOTE


def test_a_conversations_first_turn_holds_up_a_batch_that_a_later_one_must_not() -> None:
    policy = replace(PRICED, weights=replace(WEIGHTS, first_turn_pull=400.0))
    assert path(policy, asked(BUSY)) is Path.REMOTE
    assert path(policy, asked(BUSY, is_first=True)) is Path.LOCAL


def test_joint_routes_know_a_first_turn_from_a_later_one() -> None:
    joint = replace(JOINT, weights=replace(WEIGHTS, stall_price=40.0, first_turn_pull=400.0))
    prefill = [worker(name, Role.PREFILL) for name in ("p0", "p1")]
    decode = [worker(name, Role.DECODE, kv_total_blocks=10_000) for name in ("d0", "d1")]
    to = router(*prefill, *decode, policy=Policy(path=joint, costs=COSTS, conversation=BY_LOAD))
    for number in range(8):
        submit(to, f"other-{number}")
    assert submit(to, "begins", session="a").path is Path.LOCAL
    assert submit(to, "like any other").path is Path.REMOTE


def test_a_backlog_at_the_prefill_worker_makes_the_local_path_cheaper() -> None:
    asking = asked(view("d0", role=Role.DECODE, inflight_requests=4, kv_tokens=4000))
    policy = replace(PRICED, weights=replace(WEIGHTS, stall_price=8.0))
    assert path(policy, asking) is Path.REMOTE
    forecast = forecast_of(asking)
    remote = policy.choose(asking, Random(0))
    assert remote.outlook is not None
    for number in range(20):
        sent = replace(decision(f"d-{number}", prefill="p0"), outlook=remote.outlook)
        forecast.sent(sent, 0.0)
    assert path(policy, asking) is Path.LOCAL


def test_without_prices_an_slo_or_a_finite_output_the_baseline_answers() -> None:
    decode = view("d0", role=Role.DECODE)
    for asking in (asked(decode, forecast=None), asked(decode, slo=None)):
        assert PRICED.choose(asking, Random(0)).reason is Reason.ALWAYS_REMOTE
    endless = question(2000, osl=float("nan"))
    assert (
        PRICED.choose(replace(endless, slo=SLO, forecast=Forecast(COSTS, Calibration())), Random(0)).path is Path.REMOTE
    )


def test_hysteresis_keeps_a_worker_on_its_last_path_while_the_other_is_hardly_better() -> None:
    asking = asked(view("d0", role=Role.DECODE))
    forecast = forecast_of(asking)
    remote = replace(decision("d-1", prefill="p0"), outlook=PRICED.choose(asking, Random(0)).outlook)
    forecast.sent(remote, 0.0)
    forecast.ended(remote, 0.0, tpot_s=None)
    assert path(PRICED, asking) is Path.LOCAL
    assert path(replace(PRICED, weights=replace(WEIGHTS, hysteresis=5.0)), asking) is Path.REMOTE


def test_joint_routes_go_to_the_worker_that_holds_the_prompt() -> None:
    made = a_router(JOINT)
    first = submit(made, "r1", chain=(1, 2, 3, 4))
    made.observe(Dispatched(at_s=0.0, decision_id=first.decision_id))
    made.observe(FirstToken(at_s=0.5, decision_id=first.decision_id))
    made.observe(finished(first, at_s=1.0))
    again = submit(made, "r2", now_s=2.0, chain=(1, 2, 3, 4, 5))
    assert (again.path, again.decode_worker) == (Path.LOCAL, first.decode_worker)
    assert again.decode_hit_tokens > 0


def test_joint_routes_spread_over_decode_workers() -> None:
    made = a_router(JOINT)
    assert {submit(made, f"r{number}").decode_worker for number in range(8)} == {"d0", "d1"}


def test_a_joint_decision_says_what_it_expects_and_what_it_compared() -> None:
    decided = submit(a_router(JOINT), "r1")
    assert decided.policy == "joint"
    assert decided.reason is Reason.PRICE
    assert decided.outlook is not None
    assert {name for candidate in decided.decode_candidates for name, _ in candidate.scores} == {"local", "remote"}
    assert "local costs" in decided.words


def test_a_request_that_must_be_local_is_placed_by_price_all_the_same() -> None:
    decided = submit(a_router(JOINT), "r1", choices=2)
    assert (decided.path, decided.reason) == (Path.LOCAL, Reason.RULE_SEVERAL_CHOICES)


def test_joint_without_prices_places_as_usual_and_asks_the_baseline() -> None:
    decided = submit(a_router(JOINT, costs=None), "r1")
    assert (decided.path, decided.outlook) == (Path.REMOTE, None)


def test_any_policy_says_what_it_expects_where_prices_are_known() -> None:
    for policy, expected in ((AlwaysLocal(), Path.LOCAL), (AlwaysRemote(), Path.REMOTE)):
        decided = submit(a_router(policy), "r1")
        assert decided.path is expected
        assert decided.outlook is not None


def test_after_every_end_nothing_is_left_of_a_forecast() -> None:
    made = a_router(JOINT)
    first, second = submit(made, "r1"), submit(made, "r2")
    made.abort(first.decision_id, 1.0)
    made.observe(finished(second, at_s=2.0))
    assert made.forecast is not None
    assert [len(made.forecast.of(WorkerId(name)).backlog) for name in ("p0", "p1", "d0", "d1")] == [0, 0, 0, 0]


@pytest.mark.parametrize("bound", ["ttft_s", "tpot_s"])
def test_a_tighter_slo_changes_the_path(bound: str) -> None:
    """The reversal: the same request on the same fleet goes the other way for another target."""
    decode = view("d0", role=Role.DECODE, inflight_requests=12, kv_tokens=12_000)
    targets = {"ttft_s": (0.25, 1.0), "tpot_s": (9.0, 0.013)}
    ttft_s, tpot_s = targets[bound]
    asking = asked(decode, slo=SloTarget(name="tight", ttft_s=ttft_s, tpot_s=tpot_s))
    assert path(PRICED, asking) is {"ttft_s": Path.LOCAL, "tpot_s": Path.REMOTE}[bound]
