"""What a calibration found, as tables for a terminal.

The rule of this module: layout only; every figure comes from the engine file's own table.
"""

from collections.abc import Iterable

from rich.box import SIMPLE_HEAD
from rich.table import Column, Table

from gateway.core.step_cost import CostTable, StepWork
from loadtest.calibrate.observation import prefill_steps
from loadtest.calibrate.plan import Kind
from loadtest.calibrate.refine import Refined
from loadtest.engine.engine_file import EngineFile
from loadtest.engine.types import EngineSpec
from policy_store.costs.file import Residual, to_table

PREFILL_TOKENS = (512, 2048, 8192)
BATCHES = (1, 8, 32, 64)
SHOWN_CONTEXT_TOKENS = 1024
MS = 1e3
MICRO = 1e6
GIGA = 1e9


def price_table(file: EngineFile) -> Table:
    """What work costs, in the engine's time."""
    spec, costs = file.limits, to_table(file.costs)
    table = Table(Column("work"), Column("cost", justify="right"), title=file.costs.name, box=SIMPLE_HEAD)
    for label, cost in (*_prefills(spec, costs), *_decodes(spec, costs), *_overheads(file), *_transfers(file)):
        table.add_row(label, cost)
    return table


def residual_table(residuals: Iterable[Residual]) -> Table:
    """How far the table lies from the measurements."""
    names = ("points", "median", "P90")
    table = Table("residual", *(Column(name, justify="right") for name in names), box=SIMPLE_HEAD)
    for found in residuals:
        table.add_row(found.term, str(found.points), f"{found.median:.1%}", f"{found.p90:.1%}")
    return table


def refinement_table(refined: Refined) -> Table:
    """The factors of both phases and how their trials went."""
    names = ("observations", "factor", "held-out error before", "after", "kept")
    table = Table("phase", *(Column(name, justify="right") for name in names), box=SIMPLE_HEAD)
    for kind in (Kind.PREFILL, Kind.DECODE):
        phase = refined.phases.get(kind)
        if phase is None:
            table.add_row(str(kind), "too few", *["-"] * (len(names) - 1))
            continue
        errors = f"{phase.error_before:.1%}", f"{phase.error_after:.1%}"
        table.add_row(str(kind), str(phase.observations), f"{phase.factor:.3f}", *errors, "yes" if phase.kept else "no")
    return table


def _prefills(spec: EngineSpec, costs: CostTable) -> Iterable[tuple[str, str]]:
    longest = spec.total_blocks * spec.block_tokens
    for tokens in PREFILL_TOKENS:
        if tokens <= longest:
            steps = prefill_steps(tokens, 0, spec.max_batched_tokens)
            yield f"prefill, {tokens:,} tokens", _ms(sum(map(costs.step_seconds, steps)))


def _decodes(spec: EngineSpec, costs: CostTable) -> Iterable[tuple[str, str]]:
    for batch in BATCHES:
        if batch <= spec.max_running:
            work = StepWork(decode_sequences=batch, decode_context_tokens=batch * SHOWN_CONTEXT_TOKENS)
            label = f"decode step, batch {batch}, {SHOWN_CONTEXT_TOKENS:,} tokens each"
            yield label, _ms(costs.step_seconds(work))


def _overheads(file: EngineFile) -> Iterable[tuple[str, str]]:
    spec, attention = file.limits, file.costs.attention
    yield "step overhead, weights included", _ms(file.costs.step_overhead_s)
    yield "intake per request", _ms(spec.intake_s)
    yield "intake per 1,000 prompt tokens", _ms(1000 * spec.intake_token_s)
    yield "cached token read", f"{MICRO * attention.kv_token_s:.3g} us"


def _transfers(file: EngineFile) -> Iterable[tuple[str, str]]:
    spec = file.limits
    if file.calibration is not None and file.calibration.prefill_url is not None:
        rate = spec.transfer_bytes_per_s / spec.kv_bytes_per_token
        known = spec.kv_bytes_per_token > 1
        bytes_words = f"{spec.transfer_bytes_per_s / GIGA:.3g} GB/s, " if known else ""
        yield "KV transfer rate", f"{bytes_words}{rate:,.0f} tokens/s"
        yield "KV transfer latency", _ms(spec.transfer_latency_s)


def _ms(seconds: float) -> str:
    return f"{MS * seconds:,.3g} ms" if seconds < 1 else f"{MS * seconds:,.0f} ms"
