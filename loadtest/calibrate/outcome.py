"""The engine file of a calibration, and how far it lies from what was measured.

The rule of this module: nothing is measured or fitted here; the parts are put together and judged.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import msgspec
import numpy as np

from gateway.core.step_cost import CostTable
from loadtest.calibrate.fit import Fitted, fit, fit_transfer
from loadtest.calibrate.limits import Limits
from loadtest.calibrate.observation import Observation, predicted_seconds
from loadtest.calibrate.plan import Kind
from loadtest.engine.engine_file import Calibration, EngineFile
from loadtest.engine.fitting.regression import residual_of
from loadtest.engine.types import EngineSpec
from policy_store.costs.file import CostFile, Knots, Provenance, Residual, Source, to_table

FORMULA = (
    "first token = intake + intake_token * prompt + steps of the prompt's chunks",
    "step = step_overhead + dense(tokens) + attention; output layer and collectives are within dense",
    "attention = prefill_pair * pairs + decode_sequence * decodes + kv_token * cached tokens that are read",
    "pairs of a chunk = new * (before + (new + 1) / 2)",
    "first token of a decode leg = intake + intake_token * prompt + latency + prompt / rate + one step",
)
NOTES = (
    "All times were seen by a client over HTTP: the network's way there and back is within the intake.",
    "The step overhead holds all that a step takes however little it computes, reading the weights among it.",
)
UNKNOWN_KV_BYTES = "KV bytes per token are unknown: they are written as 1, and rates as tokens per second."
NO_TRANSFER = "No transfer was measured: rate and latency are the model's defaults."
DOUBTFUL_P90 = 0.15
"""A residual's P90 above which measurements contradict each other."""
NO_OUTPUT_LAYER = Knots(at=(1, 2), seconds=(0.0, 0.0))


def engine_file(
    name: str,
    limits: Limits,
    observations: Sequence[Observation],
    *,
    kv_bytes_per_token: int | None,
    calibration: Calibration,
) -> EngineFile:
    """Fit the observations and judge the fit.

    Raises:
        CalibrationError: too little was observed.
    """
    fitted = fit(observations)
    costs = CostFile(
        name=name,
        step_overhead_s=fitted.step_overhead_s,
        dense=fitted.dense,
        collective=None,
        output_layer=NO_OUTPUT_LAYER,
        attention=fitted.attention,
        provenance=Provenance(formula=FORMULA, sources=(_source(calibration),), residuals=(), notes=()),
    )
    table = to_table(costs)
    spec = _spec(name, limits, fitted, kv_bytes_per_token)
    if calibration.prefill_url is not None:
        spec = _with_transfer(spec, table, [seen for seen in observations if seen.kind is Kind.TRANSFER])
    found = residuals(spec, table, observations)
    notes = (*_notes(calibration, kv_bytes_per_token), *doubts(found))
    return EngineFile(
        limits=spec,
        max_model_len=limits.max_model_len,
        costs=_judged(costs, found, notes),
        calibration=calibration,
    )


def doubts(found: Iterable[Residual]) -> list[str]:
    """A sentence where the measurements contradict each other; mostly none."""
    terms = [each.term for each in found if each.p90 > DOUBTFUL_P90]
    if not terms:
        return []
    words = f"Measurements contradict each other by more than {DOUBTFUL_P90:.0%} ({', '.join(terms)}): the worker"
    return [f"{words} or its machine was not idle, or its step budget or largest batch is not what was given."]


def residuals(spec: EngineSpec, table: CostTable, observations: Iterable[Observation]) -> list[Residual]:
    """How far predictions lie from observations, by what was observed."""
    groups: dict[str, list[Observation]] = {}
    for seen in observations:
        groups.setdefault(_group(seen), []).append(seen)
    return [
        residual_of(
            term,
            "its own probes, medians of their repeats",
            np.array([seen.seconds for seen in group]),
            np.array([predicted_seconds(spec, table, seen) for seen in group]),
        )
        for term, group in groups.items()
    ]


def _group(seen: Observation) -> str:
    if seen.kind is not Kind.PREFILL:
        return str(seen.kind)
    work = seen.steps[0]
    return "prefill over a prefix" if not work.prefill or work.prefill[0][1] else "prefill"


def _spec(name: str, limits: Limits, fitted: Fitted, kv_bytes_per_token: int | None) -> EngineSpec:
    return EngineSpec(
        name=name,
        block_tokens=limits.block_tokens,
        total_blocks=limits.total_blocks,
        max_batched_tokens=limits.max_batched_tokens,
        max_running=limits.max_running,
        plans_ahead=limits.plans_ahead,
        kv_bytes_per_token=kv_bytes_per_token or 1,
        intake_s=fitted.intake_s,
        intake_token_s=fitted.intake_token_s,
    )


def _with_transfer(spec: EngineSpec, table: CostTable, moved: Sequence[Observation]) -> EngineSpec:
    known_s = [predicted_seconds(spec, table, replace(seen, moved_tokens=0)) for seen in moved]
    transfer = fit_transfer(moved, known_s)
    return replace(
        spec,
        transfer_latency_s=transfer.latency_s,
        transfer_bytes_per_s=spec.kv_bytes_per_token / transfer.token_s,
    )


def _judged(costs: CostFile, found: Sequence[Residual], notes: tuple[str, ...]) -> CostFile:
    provenance = msgspec.structs.replace(costs.provenance, residuals=tuple(found), notes=notes)
    return msgspec.structs.replace(costs, provenance=provenance)


def _notes(calibration: Calibration, kv_bytes_per_token: int | None) -> tuple[str, ...]:
    notes = list(NOTES)
    if kv_bytes_per_token is None:
        notes.append(UNKNOWN_KV_BYTES)
    if calibration.prefill_url is None:
        notes.append(NO_TRANSFER)
    return tuple(notes)


def _source(calibration: Calibration) -> Source:
    return Source(
        term="all",
        file=calibration.url,
        origin=f"tidegate calibrate, {calibration.at}",
        rows=f"{calibration.measurements} measurements of {calibration.model}, {calibration.requests} requests",
    )
