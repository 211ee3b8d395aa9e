"""How good predictions of unseen rows are.

The rule of this module: a pair is a short and a long answer of one model in one held-out fold; a tie is wrong. Models
and folds are never pooled into pairs. Intervals come from resampling groups.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gateway.core.output_length.predictor import LONG_TOKENS, MEDIUM_TOKENS
from policy_store.learn.output_length.rows import Floats, Indexes

Mask = np.ndarray[tuple[int, ...], np.dtype[np.bool_]]
MIN_CLASS_SHARE = 0.05
"""Where Short or Long holds less, the lower and the upper third stand in for them."""
BOOTSTRAPS = 200
BINS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """Share of (short, long) pairs in the right order, with a 95 % interval."""

    accuracy: float
    low: float
    high: float
    pairs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """What predictions add up to."""

    long_error: float
    """Expected calibration error of P(Long), ten bins of equal width."""
    mean_ratio: float
    """Mean expected length over mean length."""
    decile_ratios: tuple[float, ...]
    """The same by decile of the expected length."""


def short_and_long(tokens: Floats) -> tuple[Mask, Mask, str]:
    """Which answers are short and which long, and by what: the paper's classes, or thirds."""
    short, longer = tokens < MEDIUM_TOKENS, tokens >= LONG_TOKENS
    if min(short.mean(), longer.mean()) >= MIN_CLASS_SHARE:
        return short, longer, "classes"
    lower, upper = np.quantile(tokens, (1 / 3, 2 / 3))
    return tokens <= lower, tokens > upper, "thirds"


def ranking(scores: Floats, folds: Indexes, tokens: Floats, groups: np.ndarray) -> Ranking:
    """The ranking accuracy of scores and folds (both repeats x n) of one model's rows."""
    short, longer, _ = short_and_long(tokens)
    _, group = np.unique(groups, return_inverse=True)
    cells = []
    for score, fold in zip(scores, folds, strict=True):
        for number in np.unique(fold):
            lows, highs = np.flatnonzero(short & (fold == number)), np.flatnonzero(longer & (fold == number))
            right = score[highs][:, None] > score[lows][None, :]
            cells.append((group[highs], group[lows], right.astype(np.float32)))
    counts = np.ones(group.max() + 1, dtype=np.float32)
    pairs = sum(right.size for _, _, right in cells)
    rng = np.random.default_rng(0)
    drawn = [
        _accuracy(cells, rng.multinomial(len(counts), counts / counts.sum()).astype(np.float32))
        for _ in range(BOOTSTRAPS)
    ]
    low, high = np.nanquantile(drawn, (0.025, 0.975))
    return Ranking(accuracy=_accuracy(cells, counts), low=float(low), high=float(high), pairs=pairs)


def _accuracy(cells: Sequence[tuple[Indexes, Indexes, np.ndarray]], weights: np.ndarray) -> float:
    """The share of right pairs where each group counts `weights` times."""
    right = pairs = 0.0
    for highs, lows, order in cells:
        of_high, of_low = weights[highs], weights[lows]
        right += float(of_high @ order @ of_low)
        pairs += float(of_high.sum() * of_low.sum())
    return right / pairs if pairs else float("nan")


def class_accuracy(shares: Floats, tokens: Floats) -> float:
    """Share of rows whose likeliest of three classes (repeats x n x 3) is the right one."""
    true = np.digitize(tokens, (MEDIUM_TOKENS, LONG_TOKENS))
    return float((shares.argmax(axis=2) == true[None, :]).mean())


def calibration(expected: Floats, long_shares: Floats, tokens: Floats) -> Calibration:
    """Of expected lengths and P(Long), both repeats x n."""
    happened = np.tile(tokens, len(expected))
    is_long = happened >= LONG_TOKENS
    lengths, chance = expected.ravel(), long_shares.ravel()
    bins = np.minimum(BINS - 1, (chance * BINS).astype(int))
    error = sum(abs(float((chance - is_long)[bins == at].sum())) for at in range(BINS)) / len(chance)
    order = np.argsort(lengths, kind="stable")
    deciles = np.array_split(order, BINS)
    return Calibration(
        long_error=error,
        mean_ratio=float(lengths.mean() / happened.mean()),
        decile_ratios=tuple(float(lengths[part].mean() / happened[part].mean()) for part in deciles if part.size),
    )
