"""`python -m loadtest.crowd`: a thousand streams for a minute, a tenth of the clients leaving at random.

It starts its own fleet, and holds the gateway's counts, reservations and memory against what the clients saw.
"""

import argparse
import secrets
import sys
import time
from collections.abc import Sequence

import uvloop
from rich.console import Console
from rich.table import Table

from loadtest.client.options import LoadOptions
from loadtest.crowd.checks import Check, State, checks, read_page
from loadtest.crowd.crowd import CrowdOptions, CrowdResult, run_crowd
from loadtest.fleet.fleet import FleetSpec, RunningFleet, running_fleet
from loadtest.fleet.pools import parse_pools

WARM_UP_S = 30.0
"""How long a crowd of the same size lasts before memory is first looked at: some three lives of a stream.

CPython and glibc keep what the busiest moment took, and that comes only once streams of several generations begin and
end side by side.
"""
SETTLE_S = 30.0
"""How long everything may take to come to rest after the last client has gone."""
SETTINGS = {
    # Of Dynamo's policies, this one takes both paths.
    "routing": {
        "policy": "dynamo",
        "dynamo": {"policy": "isl_or_load", "prefill_busy_threshold": 0.5},
        "index_blocks_per_worker": 500,
    },
    "telemetry": {"recent_decisions": 500},
}
"""The two bounds let what is remembered of ended requests be full before memory is first looked at."""


def main(argv: Sequence[str] | None = None) -> None:
    """Run, print, and exit with 1 where something does not hold."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.crowd", description=__doc__)
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--leave-ratio", type=float, default=0.1)
    arguments = parser.parse_args(argv)
    spec = FleetSpec(pools=parse_pools("2P4D"), engine="h100-llama8b", speed=0.25, settings=SETTINGS)
    with running_fleet(spec) as fleet:
        found = _measure(fleet, spec, arguments.streams, arguments.seconds, arguments.leave_ratio)
    Console().print(_table(found))
    failed = [check for check in found if not check.holds]
    Console().print(f"{len(found) - len(failed)}/{len(found)} checks hold")
    sys.exit(bool(failed))


def _measure(fleet: RunningFleet, spec: FleetSpec, streams: int, seconds: float, leave_ratio: float) -> list[Check]:
    _crowd(fleet, spec, streams, WARM_UP_S, leave_ratio, seed=1)
    before = _settled(fleet)
    result = _crowd(fleet, spec, streams, seconds, leave_ratio, seed=2)
    return checks(result, before, _settled(fleet), streams=streams)


def _crowd(
    fleet: RunningFleet, spec: FleetSpec, streams: int, seconds: float, leave_ratio: float, *, seed: int
) -> CrowdResult:
    load = LoadOptions(url=fleet.openai_url, model=spec.model, run_id=f"crowd-{secrets.token_hex(3)}", timeout_s=300.0)
    options = CrowdOptions(
        load=load,
        streams=streams,
        duration_s=seconds,
        leave_ratio=leave_ratio,
        leave_within_s=min(20.0, seconds / 2),
        input_tokens=256,
        output_tokens=120,
        seed=seed,
    )
    return uvloop.run(run_crowd(options))


def _settled(fleet: RunningFleet) -> State:
    deadline_s = time.monotonic() + SETTLE_S
    while not (state := _state(fleet)).at_rest and time.monotonic() < deadline_s:
        time.sleep(0.5)
    return state


def _state(fleet: RunningFleet) -> State:
    workers = [read_page(f"{worker['url']}/metrics") for worker in fleet.workers]
    return State.of(read_page(f"{fleet.url}/metrics"), workers)


def _table(found: Sequence[Check]) -> Table:
    table = Table("check", "seen", "holds")
    for check in found:
        table.add_row(check.name, check.seen, "yes" if check.holds else "[red]NO[/]")
    return table


if __name__ == "__main__":
    main()
