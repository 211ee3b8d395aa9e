import numpy as np
import pytest

from gateway.core.output_length.facts import PromptFacts
from gateway.core.output_length.features import extract
from policy_store.learn.output_length.calibrate import fit_mean, fit_odds
from policy_store.learn.output_length.cross import cross_validated
from policy_store.learn.output_length.judge import ranking
from policy_store.learn.output_length.levels import model_levels, pooled_level, standardised, tenant_scores
from policy_store.learn.output_length.options import PAPER, TrainOptions
from policy_store.learn.output_length.rows import columns, fold_of_each, joined, row_of
from policy_store.learn.output_length.train import train, vectors_of
from tests.policy_store.learn.output_length.length_lab import SMALL, prompt_rows, prompts, sessions

pytest.importorskip("xgboost")


def test_words_tell_long_answers_from_short_ones() -> None:
    rows = prompt_rows(120)
    unseen = cross_validated(rows, SMALL, 1)
    for model in ("terse", "wordy"):
        chosen = rows.models == model
        tokens, groups, folds = rows.tokens[chosen], rows.groups[chosen], unseen.folds[:, chosen]
        assert ranking(unseen.shares[:, chosen, 2], folds, tokens, groups).accuracy > 0.9
        ratio = unseen.expected[:, chosen].mean() / tokens.mean()
        assert 0.8 < ratio < 1.25


def test_earlier_answers_tell_where_there_is_no_text() -> None:
    rows = columns(sessions(40))
    unseen = cross_validated(rows, SMALL, 1)
    assert ranking(unseen.expected, unseen.folds, rows.tokens, rows.groups).accuracy > 0.8


def test_training_and_serving_see_the_same_vector() -> None:
    facts = PromptFacts(text="Please define topic1 topic2", prompt_tokens=7.0, model="wordy", tenant="t")
    made = train(prompt_rows(60), SMALL)
    row = prompts(1)[0]
    again = vectors_of(made.model, columns([row_of(facts, row.output_tokens, row.group)]))
    assert again == [pytest.approx(extract(facts, made.model.spec), nan_ok=True, abs=0.0, rel=0.0)]


def test_the_same_rows_make_the_same_predictor() -> None:
    rows = prompt_rows(60)
    assert train(rows, SMALL).boosters == train(rows, SMALL).boosters


def test_rows_without_text_and_rows_with_text_learn_together() -> None:
    both = joined([prompt_rows(60), columns(sessions(20))])
    model = train(both, SMALL).model
    assert all(model.predict(features).expected_tokens > 0.0 for features in vectors_of(model, both))


def test_the_papers_arm_looks_at_nineteen_features_only() -> None:
    model = train(prompt_rows(60), TrainOptions(columns=PAPER.columns, trees=SMALL.trees, folds=3)).model
    used = {
        at
        for tree in model.log_length.trees.trees
        for at, left in zip(tree.feature, tree.left, strict=True)
        if left >= 0
    }
    assert model.spec.text is None
    assert used <= set(range(5, 24))


def test_too_few_groups_are_refused() -> None:
    with pytest.raises(ValueError, match="fewer groups"):
        train(prompt_rows(2), SMALL)


def test_a_group_is_never_on_both_sides() -> None:
    groups = np.array([f"g{number // 3}" for number in range(60)])
    fold = fold_of_each(groups, 5, np.random.default_rng(0))
    assert all(len(set(fold[groups == group])) == 1 for group in np.unique(groups))
    assert set(fold) == set(range(5))


def test_few_rows_of_a_model_are_drawn_to_the_pooled_level() -> None:
    rows = joined([prompt_rows(40, models=("many",)), prompt_rows(1, models=("few",))])  # type: ignore[arg-type]
    pooled = pooled_level(rows)
    levels = model_levels(rows, pooled, 20.0)
    assert abs(levels["few"].log_tokens - pooled.log_tokens) < 0.2
    lengths = standardised(rows, levels)
    assert abs(tenant_scores(rows, lengths, 50.0)[rows.tenants[0] or 0]) < 0.05


def test_odds_are_calibrated_and_keep_their_order() -> None:
    rng = np.random.default_rng(0)
    margins = rng.normal(6.0, 2.0, size=4000)
    happened = (rng.random(4000) < 1 / (1 + np.exp(-(2.0 * (margins - 6.0) - 1.0)))).astype(float)
    line = fit_odds(margins, happened)
    assert line.slope == pytest.approx(2.0, rel=0.1)
    assert line.at(6.0) == pytest.approx(-1.0, abs=0.15)
    assert fit_odds(margins, np.zeros(4000)).slope > 0.0


def test_expected_lengths_add_up_to_what_was_seen() -> None:
    rng = np.random.default_rng(0)
    logs = rng.normal(5.0, 1.0, size=2000)
    tokens = np.exp(0.5 * logs + 2.0) * rng.lognormal(0.0, 0.5, size=2000)
    line = fit_mean(logs, tokens)
    assert line.slope == pytest.approx(0.5, abs=0.05)
    assert np.exp(line.intercept + line.slope * logs).sum() == pytest.approx(tokens.sum())
