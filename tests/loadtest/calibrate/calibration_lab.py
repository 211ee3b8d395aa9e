"""A whole calibration in virtual time, and how far its table lies from the true one."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, replace

from gateway.core.step_cost import CostTable, StepWork
from loadtest.calibrate.limits import Limits
from loadtest.calibrate.outcome import engine_file
from loadtest.calibrate.plan import Plan, make_plan
from loadtest.calibrate.prober import Measured, Prober, Texts
from loadtest.engine.engine_file import Calibration, EngineFile
from loadtest.engine.presets import load_engine
from loadtest.engine.types import EngineSpec
from policy_store.costs.file import to_table
from tests.loadtest.calibrate.engine_target import EngineTarget

CALIBRATION = Calibration(
    at="2026-01-01T00:00:00+00:00",
    url="http://d",
    prefill_url="http://p",
    model="m",
    speed=1.0,
    requests=1,
    budget_requests=1,
    measurements=1,
    failed_probes=0,
)

PREFILLS = [StepWork(prefill=((tokens, 0),)) for tokens in (64, 128, 256, 512, 1024, 2048, 4096, 8192)]
OVER_PREFIXES = [StepWork(prefill=((new, before),)) for new in (64, 512, 2048) for before in (256, 1024, 4096, 8192)]
DECODES = [
    StepWork(decode_sequences=batch, decode_context_tokens=batch * context)
    for batch in (1, 2, 4, 8, 16, 32, 64)
    for context in (256, 1024, 4096)
]


def limits_of(spec: EngineSpec, *, max_model_len: int = 131_072) -> Limits:
    return Limits(
        model="m",
        block_tokens=spec.block_tokens,
        total_blocks=spec.total_blocks,
        max_model_len=max_model_len,
        max_batched_tokens=spec.max_batched_tokens,
        max_running=spec.max_running,
        plans_ahead=spec.plans_ahead,
    )


def true_engine(name: str) -> tuple[EngineSpec, CostTable]:
    """A preset whose prefill legs let go of their KV at once: nobody fetches it here."""
    spec, table = load_engine(name)
    return replace(spec, hold_lease_s=1e-9), table


@dataclass
class Calibrated:
    plan: Plan
    measured: Measured
    file: EngineFile
    worker: EngineTarget
    table: CostTable

    def worst_error(self, works: Iterable[StepWork]) -> float:
        """The largest relative error of a step."""
        true = self.worker.costs
        return max(abs(self.table.step_seconds(work) / true.step_seconds(work) - 1) for work in works)


def calibrated(
    engine: str, *, budget: int = 1000, late_s: float = 0.0, noise_s: float = 0.0, seed: int = 0
) -> Calibrated:
    spec, costs = true_engine(engine)
    limits = limits_of(spec)
    worker = EngineTarget(spec, costs, seed=seed, late_s=late_s, noise_s=noise_s)
    sender = EngineTarget(spec, costs, seed=seed + 1)
    plan = make_plan(limits, budget=budget, transfers=True)
    measured = asyncio.run(Prober(worker, limits, Texts(seed), prefill_worker=sender).run(plan))
    file = engine_file(
        "x",
        limits,
        measured.observations,
        kv_bytes_per_token=spec.kv_bytes_per_token,
        calibration=CALIBRATION,
    )
    return Calibrated(plan=plan, measured=measured, file=file, worker=worker, table=to_table(file.costs))
