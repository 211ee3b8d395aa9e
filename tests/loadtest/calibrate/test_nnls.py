import numpy as np
import pytest

from loadtest.calibrate.nnls import robust_non_negative
from loadtest.engine.fitting.regression import non_negative_least_squares

RNG = np.random.default_rng(5)


def test_an_exact_solution_is_found_whatever_the_columns_units() -> None:
    matrix = RNG.uniform(0.1, 1.0, (30, 6)) * np.array([1, 1e6, 1e-3, 1e9, 1, 10])
    wanted = np.array([1.0, 2e-6, 0.0, 3e-9, 0.0, 0.5])
    assert non_negative_least_squares(matrix, matrix @ wanted) == pytest.approx(wanted, rel=1e-6, abs=1e-15)


@pytest.mark.parametrize("seed", range(20))
def test_the_optimality_conditions_hold(seed: int) -> None:
    rng = np.random.default_rng(seed)
    matrix, target = rng.normal(size=(25, 8)), rng.normal(size=25)
    solution = non_negative_least_squares(matrix, target)
    gradient = matrix.T @ (target - matrix @ solution)
    assert np.all(solution >= 0)
    assert np.all(gradient <= 1e-8)
    assert np.all(np.abs(gradient[solution > 0]) <= 1e-8)


def test_columns_of_zeros_get_nothing() -> None:
    matrix = np.array([[1.0, 0.0], [2.0, 0.0]])
    assert non_negative_least_squares(matrix, np.array([2.0, 4.0])) == pytest.approx([2.0, 0.0])


def test_outliers_hardly_move_the_robust_solution() -> None:
    matrix = np.stack([np.ones(40), np.arange(40.0)], axis=1)
    target = matrix @ np.array([5.0, 0.3]) * (1 + 0.01 * RNG.normal(size=40))
    target[[3, 17, 30]] *= 4
    assert robust_non_negative(matrix, target, scale=target) == pytest.approx([5.0, 0.3], rel=0.03)
