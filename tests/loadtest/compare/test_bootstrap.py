import numpy as np
import pytest

from loadtest.compare.bootstrap import METRICS, resampled
from tests.loadtest.compare.compare_lab import served

RNG = np.random.default_rng(1)
LATE = RNG.exponential(1.0, 600).tolist()
EARLY = [0.5 * each for each in LATE]


def test_a_constant_figure_has_an_interval_without_width() -> None:
    own = resampled({"a": [served([1.0] * 50), served([1.0] * 50)]}, draws=50)["a"]
    assert own.interval("ttft_p90_s") == own.interval("ttft_p50_s")
    assert own.interval("ttft_p90_s").low == own.interval("ttft_p90_s").high == 1.0


def test_values_are_those_of_all_seeds_together() -> None:
    own = resampled(
        {"a": [served([float(n) for n in range(1, 11)]), served([float(n) for n in range(11, 21)])]}, draws=20
    )
    assert own["a"].values["ttft_p50_s"] == 10.0
    assert own["a"].values["ttft_p90_s"] == 18.0


def test_differences_are_paired_request_by_request() -> None:
    found = resampled({"a": [served(EARLY)] * 3, "b": [served(LATE)] * 3}, draws=200)
    beside = found["a"].beside(found["b"], "ttft_p90_s")
    assert (beside.value, beside.low, beside.high) == pytest.approx((-0.5, -0.5, -0.5))
    assert found["b"].interval("ttft_p90_s").high > found["b"].interval("ttft_p90_s").low


def test_an_arm_beside_itself_is_even() -> None:
    own = resampled({"a": [served(LATE)]}, draws=30)["a"]
    for metric in METRICS:
        assert own.beside(own, metric).value == own.beside(own, metric).low == own.beside(own, metric).high == 0.0


def test_the_interval_of_a_share_is_about_that_of_theory() -> None:
    met = (RNG.random(3000) < 0.7).tolist()
    own = resampled({"a": [served([1.0] * 3000, met=met)]}, draws=2000)["a"].interval("attained_ratio")
    half = 1.96 * (0.7 * 0.3 / 3000) ** 0.5
    assert (own.high - own.low) / 2 == pytest.approx(half, rel=0.35)


def test_requests_of_one_burst_share_their_fate_and_widen_the_interval() -> None:
    scattered = [n % 2 == 0 for n in range(3000)]
    in_bursts = [n // 100 % 2 == 0 for n in range(3000)]
    found = resampled(
        {"scattered": [served([1.0] * 3000, met=scattered)], "bursts": [served([1.0] * 3000, met=in_bursts)]}, draws=300
    )
    widths = {name: one.interval("attained_ratio") for name, one in found.items()}
    assert widths["bursts"].high - widths["bursts"].low > 5 * (widths["scattered"].high - widths["scattered"].low)


def test_an_answer_of_one_token_has_no_share_in_tpot_and_a_failed_one_was_late_without_end() -> None:
    own = resampled({"a": [served([1.0, 1.0, float("inf")], [float("nan"), 0.03, float("inf")])]}, draws=5)["a"]
    assert own.values["tpot_p50_s"] == 0.03
    assert own.values["ttft_p90_s"] == float("inf")


def test_arms_of_other_requests_are_not_compared() -> None:
    with pytest.raises(ValueError, match="same requests"):
        resampled({"a": [served([1.0])], "b": [served([1.0, 2.0])]}, draws=2)


def test_equal_seeds_give_equal_draws() -> None:
    first, second = (resampled({"a": [served(LATE)]}, draws=50, seed=4)["a"] for _ in range(2))
    assert first.interval("ttft_p90_s") == second.interval("ttft_p90_s")
