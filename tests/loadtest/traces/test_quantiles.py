import numpy as np
import pytest

from loadtest.traces.quantiles import evenly_spaced, lengths, value, values

KNOTS = ((0.0, 1.0), (0.5, 10.0), (1.0, 1_000.0))


def test_between_knots_the_logarithm_is_linear() -> None:
    assert value(KNOTS, 0.25) == pytest.approx(10**0.5)
    assert values(KNOTS, np.array([0.0, 0.5, 0.75, 1.0])) == pytest.approx([1, 10, 100, 1_000])


def test_lengths_are_whole_and_at_least_one() -> None:
    assert lengths(((0.0, 0.01), (1.0, 100.0)), np.array([0.0, 1.0])) == [1, 100]


def test_even_knots_reach_from_zero_to_one() -> None:
    assert evenly_spaced([0, 5, 9]) == ((0.0, 1.0), (0.5, 5.0), (1.0, 9.0))


def test_one_value_is_as_many() -> None:
    probabilities = np.linspace(0.0, 1.0, 41)
    assert [value(KNOTS, p) for p in probabilities.tolist()] == pytest.approx(values(KNOTS, probabilities))
