"""Running a demonstration: one fresh fleet per arm, the same requests at the same times for all.

The rule of this module: every arm starts with empty caches and sees the same trace; nothing is kept from one to the
next.
"""

import secrets
from collections.abc import Callable, Sequence
from pathlib import Path

import uvloop

from loadtest.client.measure import Measurement, measure, write_measurement
from loadtest.client.options import LoadOptions
from loadtest.client.runner import Progress
from loadtest.demo.presets import Arm, Preset
from loadtest.fleet.fleet import FleetSpec, running_fleet
from loadtest.traces.types import TraceRequest

WARM_UP_REQUESTS = 4


def run_arm(
    preset: Preset,
    arm: Arm,
    trace: Sequence[TraceRequest],
    out: Path,
    *,
    on_progress: Callable[[Progress], object],
) -> Measurement:
    """One arm on a fleet of its own; its records, summary, decisions and journal go to `out`.

    Raises:
        FleetError: a part of the fleet did not start.
    """
    out.mkdir(parents=True, exist_ok=True)
    decisions = out / "decisions.jsonl"
    decisions.unlink(missing_ok=True)
    spec = FleetSpec(
        pools=preset.pools,
        engine=preset.engine,
        speed=preset.speed,
        settings={"routing": dict(arm.routing), "telemetry": {"decision_log": str(decisions.resolve())}},
        worker_overrides=preset.worker_overrides,
    )
    with running_fleet(spec) as fleet:
        options = LoadOptions(
            url=fleet.openai_url,
            model=spec.model,
            run_id=f"demo-{secrets.token_hex(3)}",
            speed=preset.speed,
            warm_up=WARM_UP_REQUESTS,
        )
        measurement = uvloop.run(measure(options, trace, preset.slos[0], on_progress=on_progress))
    write_measurement(out, measurement)
    return measurement
