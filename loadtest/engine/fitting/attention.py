"""The attention term, for all layers of the model on one GPU.

A kernel takes a launch, time per sequence, time per new token (which fills tiles of the causal diagonal), time per
pair of query and key, and time to read the cache. A pair costs the same whether its key is new or cached.
"""

from collections.abc import Iterable
from dataclasses import astuple, fields
from pathlib import Path

import numpy as np

from gateway.core.step_cost import AttentionTerms
from loadtest.engine.fitting.regression import Array, relative_least_squares, residual_of, rounded
from loadtest.engine.fitting.shapes import Deployment
from loadtest.engine.fitting.sources import (
    SIM_ATTENTION,
    Points,
    read_chunk_attention,
    read_decode_attention,
    read_prefill_attention,
)
from policy_store.costs.file import Residual

MAX_SEQUENCES = 256
"""Batches above the presets' bound on running sequences are left out."""

Row = tuple[float, ...]


def fit_attention(deployment: Deployment, data: Path) -> tuple[AttentionTerms, tuple[Residual, Residual]]:
    """Prefill and decode together, for both pay the launch and read the cache."""
    system = deployment.system
    heads = deployment.rank_heads, deployment.rank_kv_heads, deployment.kv
    prefill = _small_batches(read_prefill_attention(data, system, *heads))
    decode = _small_batches(read_decode_attention(data, system, *heads))
    features = np.array([_prompts_row(*point) for point in prefill] + [_decodes_row(*point) for point in decode])
    measured = np.array([*prefill.values(), *decode.values()])
    solution = relative_least_squares(features, measured)
    predicted = features @ solution
    both = np.split(measured, [len(prefill)]), np.split(predicted, [len(prefill)])
    residuals = (
        residual_of("attention: prefill", system.file("context_attention"), both[0][0], both[1][0]),
        residual_of("attention: decode", system.file("generation_attention"), both[0][1], both[1][1]),
    )
    return _terms(deployment.model.layers * solution), residuals


def check_chunks(deployment: Deployment, terms: AttentionTerms, data: Path) -> Residual:
    """Chunks over a prefix against LLMServingSim's, whose kernel reads one head's keys serially."""
    chunks = read_chunk_attention(data)
    features = np.array([_chunk_row(*point) for point in chunks])
    predicted = features @ np.array(astuple(terms)) / deployment.model.layers
    against = f"{SIM_ATTENTION}: prefill rows, not fitted to"
    return residual_of("attention: chunk over a prefix", against, np.array([*chunks.values()]), predicted)


def _small_batches(points: Points) -> Points:
    return {point: seconds for point, seconds in points.items() if point[0] <= MAX_SEQUENCES}


def _prompts_row(batch: int, new: int) -> Row:
    return (1, batch, batch * new, batch * new * (new + 1) / 2, 0, 0)


def _decodes_row(batch: int, step: int) -> Row:
    return (1, 0, 0, 0, batch, batch * (step + 1))


def _chunk_row(new: int, before: int) -> Row:
    return (1, 1, new, new * (before + (new + 1) / 2), 0, before)


def _terms(solution: Array) -> AttentionTerms:
    values: Iterable[float] = map(rounded, solution)
    return AttentionTerms(**dict(zip((field.name for field in fields(AttentionTerms)), values, strict=True)))
