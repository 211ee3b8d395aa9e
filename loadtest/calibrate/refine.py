"""Scaling a cost table to what a decision log observed.

The rule of this module: two factors, one for prefill and one for decode, each the least absolute relative deviation of
the requests that hardly queued, and each kept only if it brings the table closer to requests that it was not fitted to.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from gateway.core.step_cost import AttentionTerms, CostTable
from loadtest.calibrate.observation import Observation, predicted_seconds
from loadtest.calibrate.plan import Kind
from loadtest.engine.engine_file import EngineFile
from loadtest.engine.fitting.regression import isotonic, rounded
from policy_store.costs.file import CostFile, Knots, to_table

LEAST_OBSERVATIONS = 20
"""Of a kind, to fit a factor to."""
HELD_OUT_EVERY = 3
"""Each third observation of a kind, in order of arrival, is not fitted to."""
DECODE_TOKENS = 128
"""Steps of up to so many tokens are priced with the decode factor."""
PREFILL_TOKENS = 512
"""Steps of this many tokens and more are priced with the prefill factor; between the two it goes over.

Where the factors would make the curve fall, it is level instead, and prices around here are in between.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseFit:
    """One factor and its trial; errors are medians of |predicted - observed| / observed on what was held out."""

    observations: int
    factor: float
    error_before: float
    error_after: float
    kept: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Refined:
    """What a log made of an engine file."""

    file: EngineFile
    """The base itself where no factor was kept."""
    phases: dict[Kind, PhaseFit]
    """A phase with too few observations is not here."""

    @property
    def changed(self) -> bool:
        """Whether any factor was kept."""
        return any(phase.kept for phase in self.phases.values())


def refine(base: EngineFile, observations: Sequence[Observation], *, log_name: str) -> Refined:
    """Fit and try the decode factor, then on top of it the prefill factor."""
    file = base
    phases: dict[Kind, PhaseFit] = {}
    for kind in (Kind.DECODE, Kind.PREFILL):
        seen = [one for one in observations if one.kind is kind]
        if len(seen) < LEAST_OBSERVATIONS:
            continue
        held_out = seen[HELD_OUT_EVERY - 1 :: HELD_OUT_EVERY]
        fitted_to = [one for place, one in enumerate(seen, start=1) if place % HELD_OUT_EVERY]
        factor = _factor(file, fitted_to)
        factors = {Kind.DECODE: (factor, 1.0), Kind.PREFILL: (1.0, factor)}[kind]
        trial = msgspec.structs.replace(file, costs=scaled(file.costs, decode=factors[0], prefill=factors[1]))
        before, after = _error(file, held_out), _error(trial, held_out)
        kept = after < before
        phases[kind] = PhaseFit(
            observations=len(seen), factor=factor, error_before=before, error_after=after, kept=kept
        )
        if kept:
            words = f"{len(seen)} requests, held-out error {before:.1%} to {after:.1%}"
            file = _noted(trial, f"{kind} times {factor:.3f} after {log_name}: {words}")
    return Refined(file=file, phases=phases)


def scaled(costs: CostFile, *, decode: float, prefill: float) -> CostFile:
    """The same engine with its decode steps and its prefill steps so many times as long.

    A step's fixed terms go with the decodes. What tokens cost is scaled so that whole steps of many tokens, fixed terms
    included, go with the prefills.
    """
    fixed_s = costs.step_overhead_s + costs.attention.launch_s
    attention = costs.attention
    return CostFile(
        name=costs.name,
        step_overhead_s=rounded(costs.step_overhead_s * decode),
        sequence_overhead_s=rounded(costs.sequence_overhead_s * decode),
        dense=_scaled_knots(costs.dense, fixed_s, decode, prefill),
        collective=None if costs.collective is None else _scaled_knots(costs.collective, 0.0, decode, prefill),
        output_layer=Knots(
            at=costs.output_layer.at, seconds=tuple(rounded(decode * value) for value in costs.output_layer.seconds)
        ),
        attention=AttentionTerms(
            launch_s=rounded(attention.launch_s * decode),
            prefill_sequence_s=rounded(attention.prefill_sequence_s * prefill),
            prefill_token_s=rounded(attention.prefill_token_s * prefill),
            prefill_pair_s=rounded(attention.prefill_pair_s * prefill),
            decode_sequence_s=rounded(attention.decode_sequence_s * decode),
            kv_token_s=rounded(attention.kv_token_s * decode),
        ),
        provenance=costs.provenance,
    )


def _scaled_knots(knots: Knots, fixed_s: float, decode: float, prefill: float) -> Knots:
    """What tokens cost, so that with `fixed_s` times `decode` it adds up to the scaled whole."""
    ends = (DECODE_TOKENS, PREFILL_TOKENS)
    at = sorted({*knots.at, *(tokens for tokens in ends if knots.at[0] < tokens < knots.at[-1])})
    factors = np.interp(np.log(at), np.log(ends), (decode, prefill))
    seconds = factors * (np.interp(at, knots.at, knots.seconds) + fixed_s) - decode * fixed_s
    return Knots(at=tuple(at), seconds=tuple(map(rounded, isotonic(np.maximum(seconds, 0.0).tolist()))))


def _factor(file: EngineFile, observations: Sequence[Observation]) -> float:
    """The factor of the scaled part of each prediction that minimises the sum of |predicted - observed| / observed.

    That is a weighted median of what each request by itself would ask for.
    """
    table = to_table(file.costs)
    seconds = np.array([seen.seconds for seen in observations])
    parts = np.array([_scaled_part(table, seen) for seen in observations])
    fixed = np.array([predicted_seconds(file.limits, table, seen) for seen in observations]) - parts
    counts = parts > 0
    wanted, weights = (seconds - fixed)[counts] / parts[counts], (parts / seconds)[counts]
    if not len(wanted):
        return 1.0
    order = np.argsort(wanted)
    half = int(np.searchsorted(np.cumsum(weights[order]), weights.sum() / 2))
    return max(float(wanted[order][half]), 0.01)


def _scaled_part(table: CostTable, seen: Observation) -> float:
    """Seconds of the steps that the phase's factor scales: all of a decode, a first token's steps of many tokens."""
    if seen.kind is Kind.DECODE:
        return sum(map(table.step_seconds, seen.steps))
    long = (work for work in seen.steps if sum(new for new, _ in work.prefill) >= PREFILL_TOKENS)
    return sum(map(table.step_seconds, long))


def _error(file: EngineFile, observations: Sequence[Observation]) -> float:
    table = to_table(file.costs)
    errors = [abs(predicted_seconds(file.limits, table, seen) / seen.seconds - 1) for seen in observations]
    return float(np.median(errors))


def _noted(file: EngineFile, note: str) -> EngineFile:
    provenance = file.costs.provenance
    noted = msgspec.structs.replace(provenance, notes=(*provenance.notes, note))
    return msgspec.structs.replace(file, costs=msgspec.structs.replace(file.costs, provenance=noted))
