import pytest

from loadtest.calibrate.limits import CalibrationError, Limits
from loadtest.calibrate.plan import Kind, decode_output_tokens, make_plan

LARGE = Limits(
    model="m",
    block_tokens=64,
    total_blocks=10_000,
    max_model_len=131_072,
    max_batched_tokens=8192,
    max_running=256,
    plans_ahead=True,
)
SMALL = Limits(
    model="m",
    block_tokens=32,
    total_blocks=256,
    max_model_len=2048,
    max_batched_tokens=2048,
    max_running=16,
    plans_ahead=True,
)


@pytest.mark.parametrize("limits", [LARGE, SMALL])
@pytest.mark.parametrize("budget", [150, 400, 1000, 5000])
def test_plans_keep_within_budget_and_limits(limits: Limits, budget: int) -> None:
    plan = make_plan(limits, budget=budget, transfers=True)
    assert plan.requests <= budget
    for probe in (probe for one in plan.rounds for probe in one):
        if probe.kind is Kind.DECODE:
            length = probe.context_tokens + decode_output_tokens(probe, limits)
            assert probe.size <= limits.max_running
            assert probe.size * length < limits.kv_tokens
        else:
            length = probe.size + probe.context_tokens
        assert length < limits.longest_tokens


def test_a_larger_budget_buys_more_points_or_more_rounds() -> None:
    costs = [make_plan(LARGE, budget=budget, transfers=False).requests for budget in (150, 400, 1000, 3000)]
    assert costs == sorted(set(costs))


def test_too_small_a_budget_is_refused_with_the_least_one() -> None:
    with pytest.raises(CalibrationError, match=r"at least (\d+) requests, the budget is 10"):
        make_plan(LARGE, budget=10, transfers=True)


def test_too_short_requests_are_refused() -> None:
    short = Limits(
        model="m",
        block_tokens=16,
        total_blocks=8,
        max_model_len=None,
        max_batched_tokens=2048,
        max_running=16,
        plans_ahead=True,
    )
    with pytest.raises(CalibrationError, match="128 tokens are too short"):
        make_plan(short, budget=1000, transfers=False)


def test_prefixes_come_before_what_adds_to_them_and_are_not_displaced() -> None:
    for probes in make_plan(SMALL, budget=400, transfers=False).rounds:
        last_prefix = 0
        for probe in probes:
            if probe.kind is Kind.PREFILL and probe.context_tokens:
                assert probe.context_tokens == last_prefix
            elif probe.kind is Kind.PREFILL:
                last_prefix = probe.size


def test_without_a_prefill_worker_no_transfer_is_probed() -> None:
    plan = make_plan(LARGE, budget=400, transfers=False)
    assert not any(probe.kind is Kind.TRANSFER for one in plan.rounds for probe in one)
    assert not plan.warms_transfers
