"""Trains a predictor: levels, the text score, three boosted ensembles, models' own lines and the calibrations.

The rule of this module: nothing that a model predicts for its own training rows is used; text scores, own lines
and calibrations come from inner folds, split by group.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import xgboost

from gateway.core.output_length.features import FEATURES, MODEL_NUMBER, MODEL_SPREAD, FeatureSpec, joined, learned
from gateway.core.output_length.own_line import SHARED, OwnLine, position
from gateway.core.output_length.predictor import LONG_TOKENS, MEDIUM_TOKENS, Head, Line, OutputLengthModel, linear_guess
from gateway.core.output_length.terms import TextScore
from policy_store.boosters import read_booster
from policy_store.learn.output_length.calibrate import fit_mean, fit_odds
from policy_store.learn.output_length.levels import log_scales, model_levels, pooled_level, standardised, tenant_scores
from policy_store.learn.output_length.options import TrainOptions
from policy_store.learn.output_length.own_lines import Shared, own_line
from policy_store.learn.output_length.rows import Floats, Indexes, LengthRows, fold_of_each
from policy_store.learn.output_length.terms import fit_text, retrusted, scores, trusted
from policy_store.output_length_file import Trained

THREADS = 1
"""Of XGBoost: results must not depend on the machine."""
ODDS_WEIGHT = 0.25
"""A row weighs at most so much in a tree for odds, and 1 in one for lengths."""


@dataclass(frozen=True, slots=True, eq=False)
class _Data:
    """What all three heads are trained on."""

    inputs: Floats
    """n x len(FEATURES), hidden columns missing."""
    guesses: Floats
    numbers: Floats
    """`Level.number` of each row's model."""
    groups: Indexes
    fold: Indexes
    options: TrainOptions


def train(rows: LengthRows, options: TrainOptions = TrainOptions()) -> Trained:  # noqa: B008 (frozen)
    """Train on all rows.

    Raises:
        ValueError: fewer groups than inner folds.
    """
    if len(np.unique(rows.groups)) < options.folds:
        raise ValueError(f"fewer groups of rows than the {options.folds} folds")
    pooled = pooled_level(rows)
    levels = model_levels(rows, pooled, options.level_rows)
    lengths = standardised(rows, levels)
    spec = FeatureSpec(models=levels, unknown=pooled, tenants=tenant_scores(rows, lengths, options.tenant_rows))
    fold = fold_of_each(rows.groups, options.folds, np.random.default_rng(options.seed))
    unseen = _unseen_scores(rows, lengths, fold, options)
    raw = _text(rows, lengths, options)
    text = None
    if raw is not None and not np.isnan(unseen).all():
        text = trusted(raw, unseen, lengths)
        unseen = retrusted(unseen, text, raw)
    every = vectors(rows, spec, unseen)
    guesses = np.array([linear_guess(row) for row in every])
    groups = np.unique(rows.groups, return_inverse=True)[1]
    data = _Data(_masked(every, options), guesses, every[:, MODEL_NUMBER], groups, fold, options)
    spread = every[:, MODEL_SPREAD]
    medium, medium_file = _odds_head(data, rows.tokens >= MEDIUM_TOKENS)
    longer, long_file = _odds_head(data, rows.tokens >= LONG_TOKENS)
    length, length_file, expected = _length_head(data, rows.tokens, spread)
    scales = log_scales(levels, rows, expected, options.level_rows)
    model = OutputLengthModel(
        spec=replace(spec, text=text),
        at_least_medium=medium,
        at_least_long=longer,
        log_length=_scaled(length, scales),
    )
    return Trained(model=model, boosters=(medium_file, long_file, length_file), rows=len(rows))


def _odds_head(data: _Data, happened: np.ndarray) -> tuple[Head, bytes]:
    answers = happened.astype(float)
    start = fit_odds(data.guesses, answers)
    starts = start.intercept + start.slope * data.guesses
    unseen = _unseen_margins(data, "binary:logistic", answers, starts)
    own, unseen = _own_lines(data, unseen, answers, odds=True)
    trees = bytes(_boosted(data, "binary:logistic", answers, starts, None).save_raw("ubj"))
    return Head(start=start, trees=read_booster(trees), end=fit_odds(unseen, answers), own=own), trees


def _length_head(data: _Data, tokens: Floats, spread: Floats) -> tuple[Head, bytes, Floats]:
    """Trees for what the linear guess leaves of the log length, each row weighed by its model's spread.

    Also what such trees expect of rows that they did not see, in tokens.
    """
    answers = np.log1p(tokens)
    unseen = _unseen_margins(data, "reg:squarederror", answers, data.guesses, 1.0 / spread**2)
    own, unseen = _own_lines(data, unseen, answers, odds=False)
    booster = _boosted(data, "reg:squarederror", answers, data.guesses, None, 1.0 / spread**2)
    trees = bytes(booster.save_raw("ubj"))
    same = Line(intercept=0.0, slope=1.0)
    end = fit_mean(unseen, tokens)
    head = Head(start=same, trees=read_booster(trees), end=end, own=own)
    return head, trees, np.exp(end.intercept + end.slope * unseen)


def _own_lines(data: _Data, unseen: Floats, answers: Floats, *, odds: bool) -> tuple[dict[float, OwnLine], Floats]:
    """Lines by `Level.number`, and the margins of unseen rows with them."""
    positions = np.array([position(row) for row in data.inputs.tolist()])
    shared = Shared(margins=unseen, answers=answers, positions=positions, fold=data.fold, groups=data.groups, odds=odds)
    lines: dict[float, OwnLine] = {}
    found = unseen.copy()
    for number in np.unique(data.numbers):
        rows = np.flatnonzero(data.numbers == number)
        if len(rows) < data.options.own_rows:
            continue
        line, found[rows] = own_line(shared.take(rows), data.options.own_priors)
        if line is not None:
            lines[float(number)] = line
    return lines, found


def _scaled(head: Head, scales: Mapping[int, float]) -> Head:
    """The head whose logarithms each model's scale was added to, as a part of its line."""
    own = dict(head.own)
    for number, scale in scales.items():
        line = own.get(number, SHARED)
        own[number] = replace(line, intercept=line.intercept + scale / head.end.slope)
    return replace(head, own=own)


def vectors(rows: LengthRows, spec: FeatureSpec, text_scores: Floats) -> Floats:
    """n x len(FEATURES), rounded to 32-bit floats as the gateway rounds them."""
    made = []
    for at in range(len(rows)):
        score = None if np.isnan(text_scores[at]) else float(text_scores[at])
        made.append(joined(learned(str(rows.models[at]), rows.tenants[at], score, spec), tuple(rows.measured[at])))
    return np.array(made, dtype=np.float64)


def vectors_of(model: OutputLengthModel, rows: LengthRows) -> Sequence[tuple[float, ...]]:
    """What the gateway would hand to the model for rows that it was not trained on."""
    made = vectors(rows, model.spec, scores(model.spec.text, rows))
    return [tuple(row) for row in made.tolist()]


def _text(rows: LengthRows, lengths: Floats, options: TrainOptions) -> TextScore | None:
    if "text_score" not in options.columns:
        return None
    return fit_text(rows, lengths, penalty=options.text_penalty, terms=options.terms)


def _unseen_scores(rows: LengthRows, lengths: Floats, fold: Indexes, options: TrainOptions) -> Floats:
    found = np.full(len(rows), np.nan)
    for number in range(options.folds):
        held = fold == number
        found[held] = scores(_text(rows.take(~held), lengths[~held], options), rows.take(held))
    return found


def _unseen_margins(
    data: _Data, objective: str, answers: Floats, starts: Floats, weights: Floats | None = None
) -> Floats:
    """For every row, start and trees, of trees that did not see its group."""
    found = np.zeros(len(answers))
    for number in range(data.options.folds):
        held = data.fold == number
        booster = _boosted(data, objective, answers, starts, ~held, weights)
        matrix = xgboost.DMatrix(data.inputs[held], base_margin=starts[held])
        found[held] = booster.predict(matrix, output_margin=True)
    return found


def _boosted(
    data: _Data,
    objective: str,
    answers: Floats,
    starts: Floats,
    chosen: np.ndarray | None,
    weights: Floats | None = None,
) -> xgboost.Booster:
    """Trees on top of `starts` for the chosen rows, all where none are named."""
    rows = np.arange(len(answers)) if chosen is None else np.flatnonzero(chosen)
    trees = data.options.trees
    odds = objective == "binary:logistic"
    settings = {
        "objective": objective,
        # Ignored in training, where every row starts from its own margin; read back as a margin of zero.
        "base_score": 0.5 if odds else 0.0,
        "max_depth": trees.depth,
        "eta": trees.rate,
        "min_child_weight": trees.min_child_weight * (ODDS_WEIGHT if odds else 1.0),
        "subsample": trees.row_share,
        "colsample_bynode": trees.column_share,
        "lambda": trees.l2,
        "tree_method": "hist",
        "nthread": THREADS,
        "seed": data.options.seed,
        "verbosity": 0,
    }
    weight = None if weights is None else weights[rows] / weights[rows].mean()
    matrix = xgboost.DMatrix(data.inputs[rows], label=answers[rows], base_margin=starts[rows], weight=weight)
    return xgboost.train(settings, matrix, num_boost_round=trees.trees)


def _masked(inputs: Floats, options: TrainOptions) -> Floats:
    """Columns that trees may not look at are missing for every row, so no split can use them."""
    hidden = [at for at, name in enumerate(FEATURES) if name not in options.columns or at == MODEL_NUMBER]
    masked = inputs.copy()
    masked[:, hidden] = np.nan
    return masked
