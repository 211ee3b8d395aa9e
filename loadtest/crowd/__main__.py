"""`python -m loadtest.crowd`: a thousand streams for a minute, a tenth of the clients leaving at random.

It starts its own fleet, and holds the gateway's counts, reservations and memory against what the clients saw.
"""

import argparse
import re
import secrets
import sys
import time
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import uvloop
from rich.console import Console
from rich.table import Table

from loadtest.client.options import LoadOptions
from loadtest.crowd.crowd import LEFT, OK, CrowdOptions, CrowdResult, run_crowd
from loadtest.fleet.fleet import FleetSpec, RunningFleet, running_fleet
from loadtest.fleet.pools import parse_pools

WARM_UP_S = 10.0
SETTLE_S = 30.0
"""How long counts and memory may take to come to rest after the last client has gone."""
MEMORY_SLACK = 0.10
"""Memory counts as back at its start within this share, measured after a warm-up crowd of the same size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that must hold."""

    name: str
    seen: str
    holds: bool


def main(argv: Sequence[str] | None = None) -> None:
    """Run, print, and exit with 1 where something does not hold."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.crowd", description=__doc__)
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--leave-ratio", type=float, default=0.1)
    arguments = parser.parse_args(argv)
    spec = FleetSpec(
        pools=parse_pools("2P4D"),
        engine="h100-llama8b",
        speed=0.25,
        settings={"routing": ROUTING, "telemetry": TELEMETRY},
    )
    with running_fleet(spec) as fleet:
        checks = _measure(fleet, spec, arguments.streams, arguments.seconds, arguments.leave_ratio)
    Console().print(_table(checks))
    failed = [check for check in checks if not check.holds]
    Console().print(f"{len(checks) - len(failed)}/{len(checks)} checks hold")
    sys.exit(bool(failed))


ROUTING = {"policy": "dynamo", "dynamo": {"policy": "isl_or_load", "prefill_busy_threshold": 0.5}}
"""So that both paths are taken."""
TELEMETRY = {"recent_decisions": 500}
"""So that the ring of decisions is full before memory is first looked at."""


def _measure(fleet: RunningFleet, spec: FleetSpec, streams: int, seconds: float, leave_ratio: float) -> list[Check]:
    _crowd(fleet, spec, streams, WARM_UP_S, leave_ratio, seed=1)
    before = _settled(fleet)
    result = _crowd(fleet, spec, streams, seconds, leave_ratio, seed=2)
    after = _settled(fleet)
    return _checks(result, before, after, streams)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class _State:
    rss_bytes: float
    inflight: float
    outcomes: Mapping[str, float]
    worker_inflight: float
    at_rest: bool


def _settled(fleet: RunningFleet) -> _State:
    deadline_s = time.monotonic() + SETTLE_S
    while not (state := _state(fleet)).at_rest and time.monotonic() < deadline_s:
        time.sleep(0.5)
    return state


def _state(fleet: RunningFleet) -> _State:
    gateway = _series(fleet.url + "/metrics")
    workers = [_series(str(worker["url"]) + "/metrics") for worker in fleet.workers]
    running = sum(_sum(page, "vllm:num_requests_running") + _sum(page, "vllm:num_requests_waiting") for page in workers)
    outcomes: dict[str, float] = {}
    for labels, value in gateway.get("tidegate_requests_total", []):
        outcome = re.search(r'outcome="(\w+)"', labels)
        assert outcome is not None
        outcomes[outcome[1]] = outcomes.get(outcome[1], 0.0) + value
    inflight = _sum(gateway, "tidegate_inflight_requests") + _sum(gateway, "tidegate_worker_inflight_requests")
    return _State(
        rss_bytes=_sum(gateway, "process_resident_memory_bytes"),
        inflight=inflight,
        outcomes=outcomes,
        worker_inflight=running,
        at_rest=inflight == running == 0,
    )


def _checks(result: CrowdResult, before: _State, after: _State, streams: int) -> list[Check]:
    def gained(outcome: str) -> float:
        return after.outcomes.get(outcome, 0.0) - before.outcomes.get(outcome, 0.0)

    ok, left = result.outcomes[OK], result.outcomes[LEFT]
    lost = result.started - ok - left
    counted = sum(after.outcomes.values()) - sum(before.outcomes.values())
    growth = after.rss_bytes / before.rss_bytes - 1.0
    return [
        Check(name="streams open at once", seen=f"{result.peak_concurrent}", holds=result.peak_concurrent >= streams),
        Check(
            name="streams begun, ended well, left", seen=f"{result.started}, {ok}, {left}", holds=ok + left > streams
        ),
        Check(name="streams lost", seen=f"{lost} {dict(result.outcomes)}", holds=lost == 0),
        Check(name="streams with too few or too many tokens", seen=f"{result.short}", holds=result.short == 0),
        Check(
            # A client that leaves before its request is whole was never a request; one that leaves as the last byte
            # comes is ok to the gateway: so the sum is bounded, and ok is at least what the clients saw.
            name="gateway counts each stream once",
            seen=f"{gained('ok'):.0f} ok + {gained('cancelled'):.0f} cancelled of {result.started}",
            holds=ok + left - counted >= 0 and ok <= gained("ok") and counted == gained("ok") + gained("cancelled"),
        ),
        Check(
            name="in flight afterwards: gateway, workers",
            seen=f"{after.inflight:.0f}, {after.worker_inflight:.0f}",
            holds=after.at_rest,
        ),
        Check(
            name="gateway memory before, after",
            seen=f"{before.rss_bytes / 2**20:.1f} MB, {after.rss_bytes / 2**20:.1f} MB ({growth:+.1%})",
            holds=growth <= MEMORY_SLACK,
        ),
    ]


def _series(url: str) -> dict[str, list[tuple[str, float]]]:
    with urllib.request.urlopen(url, timeout=30.0) as page:  # noqa: S310 (our own loopback URL)
        text = page.read().decode()
    series: dict[str, list[tuple[str, float]]] = {}
    for line in text.splitlines():
        match = re.match(r"([\w:]+)(?:\{(.*)\})? (\S+)$", line)
        if match is not None:
            series.setdefault(match[1], []).append((match[2] or "", float(match[3])))
    return series


def _sum(page: Mapping[str, Sequence[tuple[str, float]]], name: str) -> float:
    return sum(value for _, value in page.get(name, ()))


def _table(checks: Sequence[Check]) -> Table:
    table = Table("check", "seen", "holds")
    for check in checks:
        table.add_row(check.name, check.seen, "yes" if check.holds else "[red]NO[/]")
    return table


if __name__ == "__main__":
    main()
