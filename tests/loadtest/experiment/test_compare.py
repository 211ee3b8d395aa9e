import msgspec
import pytest

from gateway.core.types import SloTarget
from loadtest.experiment.compare import UnpairedError, compare, estimate
from loadtest.experiment.rows import Coordinates, Row, to_row
from loadtest.report.summary import summarise


def row(policy: str, seed: int, attained: float | None, *, load: float = 1.0, trace: str = "") -> Row:
    where = Coordinates(experiment="e", workload="w", fleet="f", policy=policy, load=load, slo="s", seed=seed)
    made = to_row(where, summarise([], SloTarget(name="s", ttft_s=1.0, tpot_s=None)), trace_hash=trace or f"t{seed}")
    return msgspec.structs.replace(made, attained_ratio=attained)


def test_an_interval_is_students() -> None:
    # Four values with mean 5 and standard deviation 2: 3.182 (t, 3 degrees of freedom, 97.5 %) x 2 / sqrt(4).
    found = estimate([3.0, 7.0, 5.0 - 2**0.5, 5.0 + 2**0.5, None])
    assert found is not None
    assert (found.mean, found.seeds) == (pytest.approx(5.0), 4)
    assert found.low == pytest.approx(5.0 - 3.182, abs=1e-3)
    assert found.high == pytest.approx(5.0 + 3.182, abs=1e-3)


def test_one_seed_has_no_interval_and_none_has_no_mean() -> None:
    one = estimate([0.5])
    assert one is not None
    assert (one.mean, one.low, one.high, one.seeds) == (0.5, None, None, 1)
    assert estimate([None]) is None


def test_differences_are_paired_by_seed() -> None:
    # The seeds differ much more than the policies: only pairs show that b is better by 0.1 each time.
    rows = [row("a", seed, level) for seed, level in enumerate((0.1, 0.5, 0.8))]
    rows += [row("b", seed, level + 0.1) for seed, level in ((2, 0.8), (0, 0.1), (1, 0.5))]
    a, b = compare(rows, "a", metrics=["attained_ratio"])
    assert a.difference is None
    assert a.estimate is not None
    assert b.difference is not None
    assert b.difference.mean == pytest.approx(0.1)
    assert b.difference.low == pytest.approx(0.1)
    assert a.estimate.high is not None
    assert a.estimate.high - a.estimate.mean > 0.5


def test_a_difference_is_over_the_seeds_where_both_are_known() -> None:
    rows = [row("a", 0, 0.5), row("a", 1, 0.5), row("b", 0, None), row("b", 1, 0.7), row("b", 2, 0.9)]
    _, b = compare(rows, "a", metrics=["attained_ratio"])
    assert b.difference is not None
    assert (b.difference.seeds, b.difference.mean) == (1, pytest.approx(0.2))


def test_loads_are_not_mixed() -> None:
    rows = [row("a", 0, 0.5, load=1.0), row("a", 0, 0.1, load=2.0)]
    means = {one.load: one.estimate.mean for one in compare(rows, "a", metrics=["attained_ratio"]) if one.estimate}
    assert means == {1.0: 0.5, 2.0: 0.1}


def test_rows_of_different_requests_are_not_compared() -> None:
    with pytest.raises(UnpairedError, match="b had other requests"):
        compare([row("a", 0, 0.5), row("b", 0, 0.5, trace="other")], "a")
