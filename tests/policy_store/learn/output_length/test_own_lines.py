"""A model's own line: found where there is one, left out where there is not."""

import numpy as np
import pytest

from gateway.core.output_length.own_line import position
from gateway.core.output_length.predictor import linear_guess
from policy_store.learn.output_length.options import TrainOptions
from policy_store.learn.output_length.own_lines import MIN_SLOPE, Shared, own_line
from policy_store.learn.output_length.rows import Floats, columns
from policy_store.learn.output_length.train import train, vectors_of
from tests.policy_store.learn.output_length.length_lab import SMALL, prompt_rows, prompts, sessions

PRIORS = TrainOptions().own_priors
ROWS = 3000


def shared(*, odds: bool, of_prompt: float = 0.0, slope: float = 1.0, seed: int = 0) -> Shared:
    """Rows whose true margin is the shared one times `slope`, plus so much of the prompt's length."""
    rng = np.random.default_rng(seed)
    margins = rng.normal(0.0, 1.0, size=ROWS)
    positions = np.column_stack(
        (rng.normal(9.0, 1.0, size=ROWS), rng.normal(1.0, 1.0, size=ROWS), np.full(ROWS, np.nan))
    )
    true = slope * margins + of_prompt * (positions[:, 0] - 9.0)
    answers = (rng.random(ROWS) < 1 / (1 + np.exp(-true))).astype(float) if odds else true + rng.normal(size=ROWS)
    groups = np.arange(ROWS) // 5
    return Shared(margins=margins, answers=answers, positions=positions, fold=groups % 5, groups=groups, odds=odds)


@pytest.mark.parametrize("odds", [True, False])
def test_a_model_that_goes_by_the_prompts_length_gets_a_line_that_says_so(odds: bool) -> None:
    line, unseen = own_line(shared(odds=odds, of_prompt=1.5), PRIORS)
    assert line is not None
    assert line.slope == pytest.approx(1.0, abs=0.25)
    assert line.weights == pytest.approx((1.5, 0.0, 0.0), abs=0.25)
    assert line.weights[2] == 0.0  # never known
    assert np.isfinite(unseen).all()


@pytest.mark.parametrize("odds", [True, False])
@pytest.mark.parametrize("seed", range(5))
def test_a_model_that_is_as_the_others_mostly_gets_none(odds: bool, seed: int) -> None:
    rows = shared(odds=odds, seed=seed)
    line, unseen = own_line(rows, PRIORS)
    if line is None:
        assert unseen is rows.margins
    else:  # chance may give one, which then is next to nothing
        assert max(map(abs, line.weights)) < 0.3


def test_no_line_turns_the_shared_answer_round() -> None:
    line, _ = own_line(shared(odds=False, slope=-2.0), PRIORS)
    assert line is not None
    assert line.slope == MIN_SLOPE


def test_margins_of_unseen_rows_do_not_know_their_answers() -> None:
    rows = shared(odds=False, of_prompt=1.5)
    _, before = own_line(rows, (10.0,))
    rows.answers[rows.fold == 0] += 1.0
    _, after = own_line(rows, (10.0,))
    assert after[rows.fold == 0] == pytest.approx(before[rows.fold == 0])


def test_without_priors_there_are_no_lines() -> None:
    rows = shared(odds=True, of_prompt=1.5)
    assert own_line(rows, ()) == (None, rows.margins)


def _served_and_boosted(number: int) -> tuple[Floats, Floats]:
    """What the gateway's own code and XGBoost with the same lines answer for new rows, of one head."""
    xgboost = pytest.importorskip("xgboost")
    rows = columns([*prompts(120), *sessions(40)])
    made = train(rows, SMALL)
    model = made.model
    head = (model.at_least_medium, model.at_least_long, model.log_length)[number]
    vectors = vectors_of(model, columns([*prompts(30, seed=3), *sessions(10, seed=3)]))
    booster = xgboost.Booster()
    booster.load_model(bytearray(made.boosters[number]))
    guesses = np.array([linear_guess(row) for row in vectors])
    starts = head.start.intercept + head.start.slope * guesses
    margins = booster.predict(xgboost.DMatrix(np.array(vectors), base_margin=starts), output_margin=True)
    answers = []
    for margin, row in zip(margins.tolist(), vectors, strict=True):
        own = head.own.get(row[2])
        if own is not None:
            stands = zip(own.weights, own.centers, position(row), strict=True)
            added = sum(weight * (at - center) for weight, center, at in stands if not np.isnan(at))
            answers.append(head.end.at(own.intercept + own.slope * margin + added))
        else:
            answers.append(head.end.at(margin))
    served = [head.at(guess, row) for guess, row in zip(guesses.tolist(), vectors, strict=True)]
    return np.array(served), np.array(answers)


@pytest.mark.parametrize("number", range(3))
def test_serving_answers_what_xgboost_and_the_lines_do(number: int) -> None:
    served, boosted = _served_and_boosted(number)
    assert served == pytest.approx(boosted, abs=1e-4)


def test_every_models_logarithms_have_a_line_that_makes_them_add_up() -> None:
    pytest.importorskip("xgboost")
    rows = prompt_rows(60)
    model = train(rows, SMALL).model
    assert set(model.log_length.own) == {level.number for level in model.spec.models.values()} == {0, 1}
