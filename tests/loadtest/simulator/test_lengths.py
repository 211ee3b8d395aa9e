from itertools import combinations
from statistics import fmean

import numpy as np
import pytest

from gateway.core.path.rules import AlwaysLocal
from gateway.core.policy import Policy
from gateway.core.types import Role, SloTarget
from loadtest.simulator.fleet import Member, core_dispatcher
from loadtest.simulator.flight import Flight
from loadtest.simulator.lengths import Lengths, calibrated_predictions, foretold
from loadtest.traces.workload import Workload
from tests.loadtest.engine.engine_lab import SPEC
from tests.loadtest.simulator.simulator_lab import request

REQUESTS = [request(n, at_s=float(n), output=out) for n, out in enumerate((5, 900, 40, 40))]


def expected(lengths: Lengths) -> list[float]:
    """The output lengths in the gateway's features, where no answer has ended."""
    members = [Member("decode-0", Role.DECODE, SPEC)]
    workload = Workload(requests=tuple(REQUESTS))
    slo = SloTarget(name="any", ttft_s=1.0, tpot_s=1.0)
    core = core_dispatcher(Policy(path=AlwaysLocal()), members, workload, slo, seed=1, lengths=lengths)
    found = []
    for each in REQUESTS:
        flight = Flight(each, each.arrival_s)
        core.arrived(flight, each.arrival_s)
        assert flight.decision is not None
        found.append(flight.decision.features.osl_tokens)
    return found


def test_nothing_told_is_the_rolling_mean() -> None:
    assert expected(Lengths.ROLLING) == [256.0] * 4


def test_a_limit_counts_below_the_rolling_mean() -> None:
    assert expected(Lengths.LIMIT) == [5.0, 256.0, 40.0, 40.0]


def test_perfect_lengths_are_the_true_ones() -> None:
    assert expected(Lengths.PERFECT) == [5.0, 900.0, 40.0, 40.0]


def test_a_constant_is_the_mean_of_all() -> None:
    assert expected(Lengths.CONSTANT) == [246.0] * 4


def test_shuffled_lengths_are_the_true_ones_elsewhere() -> None:
    assert sorted(expected(Lengths.SHUFFLED)) == [5.0, 40.0, 40.0, 900.0]


def test_laps_of_the_requests_are_foretold_alike() -> None:
    for lengths in (Lengths.SHUFFLED, Lengths.PREDICTED):
        tell = foretold(lengths, REQUESTS, seed=2)
        assert tell is not None
        assert [tell(request(4 + n)) for n in range(4)] == [tell(each) for each in REQUESTS]


@pytest.mark.parametrize("share", [0.6, 0.72, 0.9])
def test_predictions_order_as_many_pairs_rightly_as_is_asked(share: float) -> None:
    lengths = np.random.default_rng(0).lognormal(5.0, 1.0, 700).astype(int).clip(1).tolist()
    predicted = calibrated_predictions(lengths, ranked_right=share, seed=1)
    pairs = [(a, b) for a, b in combinations(range(len(lengths)), 2) if lengths[a] != lengths[b]]
    right = [(lengths[a] < lengths[b]) == (predicted[a] < predicted[b]) for a, b in pairs]
    assert fmean(right) == pytest.approx(share, abs=0.04)
    assert fmean(predicted) == pytest.approx(fmean(lengths), rel=0.05)


def test_noisy_lengths_are_wrong_by_up_to_half_and_right_on_average() -> None:
    requests = [request(n, at_s=float(n), output=1000) for n in range(2000)]
    predict = foretold(Lengths.NOISY, requests, seed=3)
    assert predict is not None
    found = [predict(each) for each in requests]
    assert 500 <= min(found) < 550
    assert 1450 < max(found) <= 1500
    assert fmean(found) == pytest.approx(1000, rel=0.02)
    assert found != [foretold(Lengths.NOISY, requests, seed=4)(each) for each in requests]  # type: ignore[misc]
