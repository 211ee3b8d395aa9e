"""Prices of the GPUs that measured vLLM runs used, each from that GPU's own kernel profile.

They differ from the shipped ones in one term. Steps that only decode read the cache with a kernel that splits long
contexts over the GPU; a step with a prompt chunk reads it with the prefill kernel, whose decodes take two to three
times as long per cached token. So attention is fitted to both kinds of batch apart.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gateway.core.step_cost import AttentionTerms, CostTable, Curve, StepWork
from loadtest.engine.fitting.regression import Array, isotonic, relative_least_squares, residual_of
from loadtest.engine.fitting.rtx_profile import AttentionPoint, KernelProfile, profile_file, read_profile
from loadtest.engine.fitting.shapes import BYTES
from policy_store.costs.file import Residual

PER_STEP = ("embedding", "final_layernorm")
PER_LAYER_TWICE = ("layernorm",)
"""Before attention and before the feed-forward network; all other dense kernels run once per layer."""
REPLICATED = ("embedding", "layernorm", "final_layernorm")
"""Kernels that tensor parallelism does not split."""

MAX_DECODES = 128
MAX_CONTEXT_TOKENS = 4096
MAX_READ_TOKENS = MAX_DECODES * 2048
MIN_CONTEXT_TOKENS = 64
"""Attention batches beyond these are left out of the fit: the measured runs hardly reach them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """What connects the GPUs of a tensor-parallel group."""

    bytes_per_s: float
    latency_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfiledModel:
    """A profiled model, and how it was split over GPUs in a measured run."""

    profile: str
    """The profile's name in LLMServingSim's file names."""
    layers: int
    hidden: int
    gpus: int = 1
    link: Link | None = None
    """None on a single GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchKindCosts(CostTable):
    """A cost table whose attention terms hold for steps that only decode; steps with a chunk have their own."""

    mixed: CostTable

    def step_seconds(self, work: StepWork) -> float:
        """How long a step with this work takes; the work must not be empty."""
        return self.mixed.step_seconds(work) if work.prefill else CostTable.step_seconds(self, work)


def profiled_costs(
    data: Path, model: ProfiledModel, step_overhead_s: float = 0.0
) -> tuple[CostTable, tuple[Residual, ...]]:
    """The prices of one measured engine, and how far its attention terms lie from the profile.

    The sampler is left to the step overhead, as in the shipped tables. Kernel times of one GPU are divided by the
    number of GPUs where tensor parallelism splits them.
    """
    profile = read_profile(data, model.profile)
    decode, decode_residual = _fit_decode(profile, model)
    mixed, mixed_residual = _fit_mixed(profile, model)
    tokens, sequences = _dense(profile, model), _output_layer(profile, model)
    name = model.profile
    with_chunks = CostTable(
        name=name, step_overhead_s=step_overhead_s, tokens=tokens, sequences=sequences, attention=mixed
    )
    costs = BatchKindCosts(
        name=name,
        step_overhead_s=step_overhead_s,
        tokens=tokens,
        sequences=sequences,
        attention=decode,
        mixed=with_chunks,
    )
    return costs, (decode_residual, mixed_residual)


def all_reduce_seconds(model: ProfiledModel, tokens: int) -> float:
    """One ring all-reduce of the hidden states of `tokens` tokens; 0 on a single GPU."""
    if model.link is None:
        return 0.0
    hops = 2 * (model.gpus - 1)
    moved = tokens * BYTES * model.hidden / model.gpus
    return hops * (moved / model.link.bytes_per_s + model.link.latency_s)


def _dense(profile: KernelProfile, model: ProfiledModel) -> Curve:
    """All dense kernels of a step and its all-reduces, two per layer and one after the embedding."""
    sizes = sorted(set.intersection(*(set(times) for times in profile.dense.values())))
    all_reduces = 2 * model.layers + 1
    seconds = [
        sum(_times_per_step(name, model) * times[tokens] for name, times in profile.dense.items())
        + all_reduces * all_reduce_seconds(model, tokens)
        for tokens in sizes
    ]
    return Curve(tuple(sizes), isotonic(seconds))


def _times_per_step(name: str, model: ProfiledModel) -> float:
    calls = 1 if name in PER_STEP else model.layers * (2 if name in PER_LAYER_TWICE else 1)
    return calls if name in REPLICATED else calls / model.gpus


def _output_layer(profile: KernelProfile, model: ProfiledModel) -> Curve:
    times = profile.per_sequence["lm_head"]
    sizes = sorted(times)
    return Curve(tuple(sizes), isotonic(times[sequences] / model.gpus for sequences in sizes))


def _fit_decode(profile: KernelProfile, model: ProfiledModel) -> tuple[AttentionTerms, Residual]:
    points = [point for point in profile.attention if not point.new_tokens and _is_in_range(point)]
    rows = [(1, point.decodes, point.decodes * point.context_tokens) for point in points]
    solution, residual = _solve("attention: decodes alone", rows, points, model)
    launch, sequence, read = (solution * model.layers / model.gpus).tolist()
    return _terms(launch=launch, decode_sequence=sequence, kv_token=read), residual


def _fit_mixed(profile: KernelProfile, model: ProfiledModel) -> tuple[AttentionTerms, Residual]:
    """One chunk, alone or with decodes. What a second chunk adds beyond its tokens was not measured: nothing."""
    points = [point for point in profile.attention if point.new_tokens and _is_in_range(point)]
    rows = [(1, p.new_tokens, _pairs(p), p.decodes, p.tokens_before + p.decodes * p.context_tokens) for p in points]
    solution, residual = _solve("attention: a chunk with decodes", rows, points, model)
    launch, token, pair, sequence, read = (solution * model.layers / model.gpus).tolist()
    terms = _terms(launch=launch, decode_sequence=sequence, kv_token=read, prefill_token=token, prefill_pair=pair)
    return terms, residual


def _solve(
    term: str, rows: Sequence[tuple[float, ...]], points: Sequence[AttentionPoint], model: ProfiledModel
) -> tuple[Array, Residual]:
    features, measured = np.array(rows, dtype=np.float64), np.array([point.seconds for point in points])
    solution = relative_least_squares(features, measured)
    return solution, residual_of(term, profile_file(model.profile), measured, features @ solution)


def _terms(
    *, launch: float, decode_sequence: float, kv_token: float, prefill_token: float = 0.0, prefill_pair: float = 0.0
) -> AttentionTerms:
    return AttentionTerms(
        launch_s=launch,
        prefill_sequence_s=0.0,
        prefill_token_s=prefill_token,
        prefill_pair_s=prefill_pair,
        decode_sequence_s=decode_sequence,
        kv_token_s=kv_token,
    )


def _pairs(point: AttentionPoint) -> float:
    return point.new_tokens * (point.tokens_before + (point.new_tokens + 1) / 2)


def _is_in_range(point: AttentionPoint) -> bool:
    return (
        point.decodes <= MAX_DECODES
        and max(point.context_tokens, point.tokens_before) <= MAX_CONTEXT_TOKENS
        and point.decodes * point.context_tokens <= MAX_READ_TOKENS
        and (not point.decodes or point.context_tokens >= MIN_CONTEXT_TOKENS)
    )
