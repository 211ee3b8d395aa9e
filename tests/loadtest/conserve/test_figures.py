import math

import pytest

from loadtest.conserve.figures import METRICS, drawn
from tests.loadtest.conserve.conserve_lab import served


def test_figures_are_those_of_all_seeds_together() -> None:
    found = drawn({"a": [served(), served()]}, draws=50)["a"]
    values = {metric: found.interval(metric).value for metric in METRICS}
    assert values["ttfet_p50_s"] == pytest.approx(0.29)
    assert values["ttfet_p95_s"] == pytest.approx(0.47)
    assert values["last_tbt_p95_s"] == 0.02
    assert values["attained_ratio"] == 0.9
    assert values["energy_j"] == 1000.0
    assert values["transfers_mean"] == 1.0


def test_equal_arms_differ_by_nothing_whatever_is_drawn() -> None:
    found = drawn({"a": [served()], "b": [served()]}, draws=50)
    for metric in METRICS:
        assert found["a"].beside(found["b"], metric).value == 0.0
        assert found["a"].beside(found["b"], metric).low == found["a"].beside(found["b"], metric).high == 0.0


def test_latency_and_energy_compare_as_shares_and_attainment_in_points() -> None:
    half = served(ttfet_s=[0.05 + number / 200 for number in range(40)], energy_j=30_000.0, met=[8] * 40)
    found = drawn({"a": [served()], "b": [half]}, draws=50)
    beside = {metric: found["b"].beside(found["a"], metric) for metric in METRICS}
    assert beside["ttfet_p95_s"].value == pytest.approx(-0.5)
    assert beside["energy_j"].value == pytest.approx(-0.25)
    assert beside["attained_ratio"].value == pytest.approx(-0.1)


def test_one_that_never_had_a_token_waited_without_end() -> None:
    found = drawn({"a": [served(ttfet_s=[math.inf] * 4 + [0.1] * 36)]}, draws=0)["a"]
    assert found.rows["ttfet_p95_s"][0] == math.inf


def test_arms_of_different_conversations_are_not_compared() -> None:
    with pytest.raises(ValueError, match="same conversations"):
        drawn({"a": [served()], "b": [served(30)]}, draws=1)
