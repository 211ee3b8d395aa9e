import numpy as np
import pytest

from policy_store.learn.output_length.bounds import least
from policy_store.learn.output_length.judge import calibration, class_accuracy, ranking, short_and_long

TOKENS = np.array([100.0, 150.0, 900.0, 1000.0, 500.0])
GROUPS = np.array(["a", "b", "c", "d", "e"])
ONE_FOLD = np.zeros((1, 5), dtype=np.intp)


def test_a_tie_is_wrong() -> None:
    assert ranking(np.array([[0.0, 1.0, 1.0, 2.0, 9.0]]), ONE_FOLD, TOKENS, GROUPS).accuracy == 0.75


def test_pairs_are_made_inside_a_fold_only() -> None:
    folds = np.array([[0, 1, 0, 1, 0]])
    found = ranking(np.array([[0.0, 5.0, 1.0, 6.0, 0.0]]), folds, TOKENS, GROUPS)
    assert (found.accuracy, found.pairs) == (1.0, 2)


def test_the_interval_holds_the_accuracy() -> None:
    rng = np.random.default_rng(0)
    tokens = rng.lognormal(6.0, 1.0, size=200)
    scores = np.log(tokens) + rng.normal(0.0, 1.0, size=200)
    found = ranking(scores[None], np.zeros((1, 200), dtype=np.intp), tokens, np.arange(200).astype(str))
    assert found.low < found.accuracy < found.high


def test_thirds_stand_in_where_a_class_is_rare() -> None:
    assert short_and_long(TOKENS)[2] == "classes"
    short, longer, split = short_and_long(np.arange(1.0, 100.0))
    assert split == "thirds"
    assert (short.sum(), longer.sum()) == (33, 33)


def test_classes_and_calibration_are_counted() -> None:
    shares = np.array([[[1.0, 0, 0], [1.0, 0, 0], [0, 0, 1.0], [0, 1.0, 0], [0, 1.0, 0]]])
    assert class_accuracy(shares, TOKENS) == pytest.approx(0.8)
    figures = calibration(TOKENS[None] * 2.0, shares[:, :, 2], TOKENS)
    assert figures.mean_ratio == pytest.approx(2.0)
    assert figures.long_error == pytest.approx(0.2)


def test_what_is_asked_is_the_harder_of_the_bound_and_the_lead_over_length() -> None:
    assert least("arena_hard", "gpt-4-0314", 0.52) == 0.72
    assert least("arena_hard", "gpt-4-0314", 0.70) == pytest.approx(0.75)
    assert least("arena_hard", "gpt-3.5-turbo-0125", 0.60) == pytest.approx(0.65)
    assert least("airline", "gpt-4o", 0.60) is None
