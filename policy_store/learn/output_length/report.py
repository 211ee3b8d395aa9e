"""Judges a data set in all its arms and puts the figures into tables.

The rule of this module: what is asked stands beside what was measured, and what falls short is marked, not left out.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from rich.table import Column, Table

from policy_store.learn.output_length.bounds import PAPER_RANKING, least
from policy_store.learn.output_length.cross import Unseen, cross_validated, crossed
from policy_store.learn.output_length.judge import (
    Calibration,
    Ranking,
    calibration,
    class_accuracy,
    ranking,
    short_and_long,
)
from policy_store.learn.output_length.options import OF_TEXT, PAPER, WITHOUT, TrainOptions
from policy_store.learn.output_length.rows import LengthRows
from policy_store.learn.output_length.terms import with_text
from policy_store.learn.output_length.train import train

MIN_ROWS = 100
"""Of a model, to be judged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One model of one data set."""

    data_set: str
    model: str
    rows: int
    split: str
    length_alone: float
    """Ranking by the prompt's length, in the better direction."""
    paper: Ranking
    """The 19 features."""
    by_class: Ranking
    """All features, by P(Long)."""
    by_length: Ranking
    """All features, by expected length."""
    ablation: Mapping[str, float]
    """Ranking by expected length without one thing."""
    classes: float
    calibration: Calibration

    @property
    def ranking(self) -> Ranking:
        """What is judged: P(Long) as in the paper; where thirds stand in for the classes, the expected length."""
        return self.by_class if self.split == "classes" else self.by_length

    @property
    def asked(self) -> float | None:
        """The bound of `ranking`."""
        return least(self.data_set, self.model, self.length_alone)

    @property
    def met(self) -> bool:
        """Whether the bound is kept."""
        return self.asked is None or self.ranking.accuracy >= self.asked


def judge(name: str, rows: LengthRows, *, repeats: int, ablate: bool) -> list[Verdict]:
    """Judge every model of a data set that has enough rows; all are trained together, and never ranked together."""
    full = cross_validated(rows, TrainOptions(), repeats)
    paper = cross_validated(rows, PAPER, 1)
    parts = {part: options for part, options in WITHOUT.items() if len(with_text(rows)) or part not in OF_TEXT}
    without = {part: cross_validated(rows, options, 1) for part, options in parts.items()} if ablate else {}
    verdicts = []
    for model in np.unique(rows.models):
        chosen = rows.models == model
        if chosen.sum() < MIN_ROWS:
            continue
        tokens, groups = rows.tokens[chosen], rows.groups[chosen]

        def ranked(unseen: Unseen, scores: np.ndarray, chosen: np.ndarray = chosen) -> Ranking:
            return ranking(scores[:, chosen], unseen.folds[:, chosen], rows.tokens[chosen], rows.groups[chosen])

        expected, shares = full.expected[:, chosen], full.shares[:, chosen]
        length = rows.measured[chosen, 0]
        alone = [ranking(sign * length[None], full.folds[:1, chosen], tokens, groups).accuracy for sign in (1, -1)]
        verdicts.append(
            Verdict(
                data_set=name,
                model=str(model),
                rows=int(chosen.sum()),
                split=short_and_long(tokens)[2],
                length_alone=max(alone),
                paper=ranked(paper, paper.expected),
                by_class=ranked(full, full.shares[:, :, 2]),
                by_length=ranked(full, full.expected),
                ablation={part: ranked(unseen, unseen.expected).accuracy for part, unseen in without.items()},
                classes=class_accuracy(shares, tokens),
                calibration=calibration(expected, shares[:, :, 2], tokens),
            )
        )
    return verdicts


def crossings(sets: Mapping[str, LengthRows]) -> dict[tuple[str, str, str], float]:
    """Ranking by expected length of (learned from, judged on, model): what a model of other data is worth."""
    found = {}
    for learned, rows in sets.items():
        model_of_it = train(rows).model
        for judged, others in sets.items():
            if learned == judged:
                continue
            unseen = crossed(model_of_it, others)
            for model in np.unique(others.models):
                chosen = others.models == model
                if chosen.sum() >= MIN_ROWS:
                    scores, folds = unseen.expected[:, chosen], unseen.folds[:, chosen]
                    result = ranking(scores, folds, others.tokens[chosen], others.groups[chosen])
                    found[learned, judged, str(model)] = result.accuracy
    return found


def ranking_table(verdicts: Sequence[Verdict]) -> Table:
    """The ranking figures with what is asked."""
    right = ("rows", "length alone", "19 features", "P(Long)", "expected length", "95 %", "asked")
    title = f"Ranking accuracy, short against long, ties wrong (the paper's 19 features: {PAPER_RANKING[0]} and "
    title += f"{PAPER_RANKING[1]} on data that is not at hand)"
    table = Table("data set", "model", "by", *(Column(name, justify="right") for name in right), "", title=title)
    for each in verdicts:
        judged = each.ranking
        table.add_row(
            each.data_set,
            each.model,
            each.split,
            f"{each.rows:,}",
            _share(each.length_alone),
            _share(each.paper.accuracy),
            _share(each.by_class.accuracy),
            _share(each.by_length.accuracy),
            f"{_share(judged.low)}-{_share(judged.high)}",
            "-" if each.asked is None else _share(each.asked),
            "" if each.asked is None else "ok" if each.met else "SHORT",
        )
    return table


def calibration_table(verdicts: Sequence[Verdict]) -> Table:
    """Class accuracy and calibration."""
    right = ("classes right", "error of P(Long)", "mean predicted/true")
    table = Table("data set", "model", *(Column(name, justify="right") for name in right), "by decile of prediction")
    for each in verdicts:
        figures = each.calibration
        deciles = " ".join(f"{ratio:.2f}" for ratio in figures.decile_ratios)
        shares = (each.classes, figures.long_error, figures.mean_ratio)
        table.add_row(each.data_set, each.model, *map(_share, shares), deciles)
    table.title = "Class accuracy and calibration"
    return table


def ablation_table(verdicts: Sequence[Verdict]) -> Table:
    """What leaving one thing out changes, in points of ranking by expected length."""
    title = "Ranking by expected length without ... (change in points)"
    table = Table("data set", "model", "all", *WITHOUT, title=title)
    for each in verdicts:
        if each.ablation:
            whole = each.by_length.accuracy
            parts = (each.ablation.get(part) for part in WITHOUT)
            changes = ("-" if part is None else f"{(part - whole) * 100:+.1f}" for part in parts)
            table.add_row(each.data_set, each.model, _share(whole), *changes)
    return table


def crossing_table(found: Mapping[tuple[str, str, str], float], verdicts: Sequence[Verdict]) -> Table:
    """One data set for another, beside the data set's own."""
    learned = sorted({key[0] for key in found})
    title = "Ranking by expected length, learned from another data set"
    table = Table("judged on", "model", "own", *learned, title=title)
    for each in verdicts:
        cells = (found.get((source, each.data_set, each.model), math.nan) for source in learned)
        table.add_row(each.data_set, each.model, _share(each.by_length.accuracy), *map(_share, cells))
    return table


def _share(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.3f}"
