from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.slo import SloLedger, attained, target_for
from gateway.core.types import OutcomeKind, Path, SloDefaults, SloTarget
from tests.core.factories import MODEL, SLO, facts

FAST = SloTarget(name="fast", ttft_s=0.2, tpot_s=0.01)
BATCH = SloTarget(name="batch", ttft_s=60.0, tpot_s=None)
DEFAULTS = SloDefaults(default=SLO, classes=(FAST, BATCH), by_model=((MODEL, "batch"),))


class TestTarget:
    @pytest.mark.parametrize(
        ("request_has", "target"),
        [
            ({"slo_class": "fast"}, FAST),
            ({}, BATCH),
            ({"model": "other"}, SLO),
            ({"slo_class": "unheard of"}, BATCH),
            ({"model": "other", "slo_class": "unheard of"}, SLO),
            ({"slo_class": ""}, BATCH),
        ],
        ids=["header", "model", "default", "unknown header", "unknown header and model", "empty header"],
    )
    def test_the_class_comes_from_header_then_model_then_default(
        self, request_has: dict[str, Any], target: SloTarget
    ) -> None:
        assert target_for(facts(**request_has), DEFAULTS) == target

    def test_bounds_from_headers_go_on_top_of_the_class(self) -> None:
        only_ttft = target_for(facts(slo_class="fast", slo_ttft_s=5.0), DEFAULTS)
        assert only_ttft == SloTarget(name="fast", ttft_s=5.0, tpot_s=0.01)
        only_tpot = target_for(facts(slo_tpot_s=0.5), DEFAULTS)
        assert only_tpot == SloTarget(name="batch", ttft_s=60.0, tpot_s=0.5)

    def test_a_bound_of_zero_is_a_bound(self) -> None:
        assert target_for(facts(slo_ttft_s=0.0), DEFAULTS).ttft_s == 0.0


def judge(
    target: SloTarget = SLO,
    *,
    kind: OutcomeKind = OutcomeKind.OK,
    duration_s: float = 1.0,
    ttft_s: float | None = None,
    tpot_s: float | None = None,
    output_tokens: int | None = None,
) -> bool | None:
    return attained(target, kind=kind, duration_s=duration_s, ttft_s=ttft_s, tpot_s=tpot_s, output_tokens=output_tokens)


class TestJudgement:
    """SLO is 2 s to the first token and 0.04 s for each further one."""

    @pytest.mark.parametrize(
        ("ttft_s", "tpot_s", "is_met"),
        [
            (2.0, 0.04, True),
            (2.001, 0.04, False),
            (2.0, 0.0401, False),
            (9.0, 0.9, False),
            (1.0, None, True),
            (3.0, None, False),
        ],
    )
    def test_a_stream_must_meet_both_bounds(self, ttft_s: float, tpot_s: float | None, is_met: bool) -> None:
        assert judge(ttft_s=ttft_s, tpot_s=tpot_s) is is_met

    def test_a_bound_that_is_none_does_not_apply(self) -> None:
        assert judge(BATCH, ttft_s=1.0, tpot_s=99.0) is True
        free = SloTarget(name="free", ttft_s=None, tpot_s=None)
        assert judge(free, ttft_s=99.0, tpot_s=99.0) is True

    @pytest.mark.parametrize(
        ("duration_s", "output_tokens", "is_met"),
        [
            (2.0, 1, True),
            (2.01, 1, False),
            (2.4, 11, True),
            (2.41, 11, False),
            (2.0, None, True),
            (2.01, None, False),
            (2.0, 0, True),
        ],
    )
    def test_a_whole_answer_has_the_sum_of_both_budgets(
        self, duration_s: float, output_tokens: int | None, is_met: bool
    ) -> None:
        assert judge(duration_s=duration_s, output_tokens=output_tokens) is is_met

    @pytest.mark.parametrize("bounds", [(None, 0.04), (2.0, None), (None, None)])
    def test_a_whole_answer_cannot_be_judged_with_half_a_budget(self, bounds: tuple[Any, Any]) -> None:
        target = SloTarget(name="half", ttft_s=bounds[0], tpot_s=bounds[1])
        assert judge(target, duration_s=99.0, output_tokens=5) is None

    @pytest.mark.parametrize("kind", [OutcomeKind.CLIENT_ERROR, OutcomeKind.REFUSED])
    def test_what_the_client_or_the_fleet_caused_is_not_judged(self, kind: OutcomeKind) -> None:
        assert judge(kind=kind, duration_s=99.0) is None

    @pytest.mark.parametrize("kind", [OutcomeKind.UPSTREAM_ERROR, OutcomeKind.TIMEOUT])
    def test_a_failure_is_a_miss_however_fast(self, kind: OutcomeKind) -> None:
        assert judge(kind=kind, duration_s=0.01, ttft_s=0.01, tpot_s=0.001) is False

    @pytest.mark.parametrize(
        ("duration_s", "ttft_s", "is_met"),
        [(2.0, None, None), (2.01, None, False), (9.0, 1.0, None), (9.0, 3.0, None)],
    )
    def test_a_client_that_left_counts_only_where_the_first_token_was_late(
        self, duration_s: float, ttft_s: float | None, is_met: bool | None
    ) -> None:
        assert judge(kind=OutcomeKind.CANCELLED, duration_s=duration_s, ttft_s=ttft_s) is is_met

    def test_a_client_that_left_is_not_judged_without_a_ttft_bound(self) -> None:
        free = SloTarget(name="free", ttft_s=None, tpot_s=0.04)
        assert judge(free, kind=OutcomeKind.CANCELLED, duration_s=99.0) is None


def counted(*judged: tuple[float, bool], objective: float = 0.99) -> SloLedger:
    ledger = SloLedger(objective=objective)
    for now_s, is_met in judged:
        ledger.count("default", Path.LOCAL, is_met, now_s)
    return ledger


class TestBurnRate:
    def test_attainment_is_counted_by_class_and_path(self) -> None:
        ledger = counted((0.0, True), (1.0, True), (2.0, False))
        ledger.count("fast", Path.REMOTE, False, 3.0)
        assert ledger.met == {("default", Path.LOCAL): 2}
        assert ledger.missed == {("default", Path.LOCAL): 1, ("fast", Path.REMOTE): 1}
        assert list(ledger.names()) == ["default", "fast"]

    def test_missing_as_often_as_allowed_burns_at_rate_one(self) -> None:
        ledger = counted(*[(float(i), i % 10 != 0) for i in range(100)], objective=0.9)
        assert ledger.burn_rate("default", 300.0, 100.0) == pytest.approx(1.0)

    def test_missing_everything_burns_the_whole_budget_at_once(self) -> None:
        assert counted((0.0, False)).burn_rate("default", 300.0, 1.0) == pytest.approx(100.0)

    def test_without_requests_in_the_window_there_is_no_rate(self) -> None:
        ledger = counted((0.0, False))
        assert ledger.burn_rate("default", 60.0, 1_000.0) is None
        assert ledger.burn_rate("unheard of", 60.0, 0.0) is None

    def test_a_short_window_forgets_what_a_long_one_remembers(self) -> None:
        ledger = counted(*[(float(i), False) for i in range(10)], *[(500.0 + i, True) for i in range(10)])
        assert ledger.burn_rate("default", 60.0, 510.0) == 0.0
        assert ledger.burn_rate("default", 3_600.0, 510.0) == pytest.approx(50.0)

    @pytest.mark.parametrize(("now_s", "is_in"), [(69.9, True), (70.0, False), (70.1, False)])
    def test_a_window_reaches_back_to_the_bucket_that_it_cuts(self, now_s: float, is_in: bool) -> None:
        # Judged at 5 s, in the bucket from 0 to 10 s.
        rate = counted((5.0, False)).burn_rate("default", 60.0, now_s)
        assert (rate is not None) is is_in

    def test_buckets_are_bounded(self) -> None:
        ledger = SloLedger(keep_s=60.0)
        for i in range(1_000):
            ledger.count("default", Path.LOCAL, True, i * 7.0)
        # The one in use and those of the 60 s before it.
        assert len(ledger._buckets["default"]) == 7

    def test_a_clock_that_steps_back_loses_nothing(self) -> None:
        ledger = counted((100.0, True), (50.0, False))
        assert ledger.burn_rate("default", 60.0, 100.0) == pytest.approx(50.0)


@given(st.lists(st.tuples(st.floats(0, 3_000), st.booleans()), min_size=1), st.floats(0.01, 0.999))
def test_the_burn_rate_is_the_missed_share_over_the_allowed_one(
    judged: list[tuple[float, bool]], objective: float
) -> None:
    ordered = sorted(judged)
    ledger = counted(*ordered, objective=objective)
    missed = sum(not is_met for _, is_met in ordered)
    rate = ledger.burn_rate("default", 3_600.0, ordered[-1][0])
    assert rate == pytest.approx(missed / len(ordered) / (1 - objective))
