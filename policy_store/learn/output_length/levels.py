"""How long the answers of each model are as a rule, and how tenants differ from that.

The rule of this module: few rows weigh little; every estimate is drawn towards the pooled one.
"""

from collections import defaultdict
from collections.abc import Mapping

import numpy as np

from gateway.core.output_length.features import Level
from policy_store.learn.output_length.rows import Floats, LengthRows

MIN_SPREAD = 0.1
"""Answers of one length all the time would make a spread of zero."""


def pooled_level(rows: LengthRows) -> Level:
    """Of all rows together."""
    logs = np.log1p(rows.tokens)
    return Level(log_tokens=float(np.log(max(1.0, rows.tokens.mean()))), spread=max(MIN_SPREAD, float(logs.std())))


def model_levels(rows: LengthRows, pooled: Level, weight: float) -> dict[str, Level]:
    """Of each model, drawn towards `pooled` as by `weight` rows of it."""
    levels = {}
    for number, model in enumerate(np.unique(rows.models)):
        own = pooled_level(rows.take(rows.models == model))
        count = float((rows.models == model).sum())
        share = count / (count + weight)
        levels[str(model)] = Level(
            log_tokens=share * own.log_tokens + (1.0 - share) * pooled.log_tokens,
            spread=share * own.spread + (1.0 - share) * pooled.spread,
            number=number,
        )
    return levels


def standardised(rows: LengthRows, levels: Mapping[str, Level]) -> Floats:
    """Each row's log length as so many spreads from its model's level."""
    level = np.array([levels[str(model)].log_tokens for model in rows.models])
    spread = np.array([levels[str(model)].spread for model in rows.models])
    lengths: Floats = (np.log1p(rows.tokens) - level) / spread
    return lengths


def log_scales(levels: Mapping[str, Level], rows: LengthRows, predicted: Floats, weight: float) -> dict[int, float]:
    """By `Level.number`, what unseen logarithms lack to add up to what was seen, drawn to none by `weight` rows."""
    found = {}
    for model, level in levels.items():
        own = rows.models == model
        seen, said = float(rows.tokens[own].sum()), float(predicted[own].sum())
        prior = weight * seen / max(1, int(own.sum()))
        found[level.number] = float(np.log((seen + prior) / (said + prior)))
    return found


def tenant_scores(rows: LengthRows, lengths: Floats, weight: float) -> dict[int, float]:
    """Mean standardised length by tenant, less the mean of all, drawn towards zero."""
    sums: dict[int, list[float]] = defaultdict(list)
    mean = float(lengths.mean())
    for tenant, length in zip(rows.tenants, lengths, strict=True):
        if tenant is not None:
            sums[tenant].append(float(length) - mean)
    return {tenant: sum(each) / (len(each) + weight) for tenant, each in sums.items()}
