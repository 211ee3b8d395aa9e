"""A report in which every claim just holds, to be spoilt in one place, and a kernel's files made by hand."""

from pathlib import Path
from typing import Any

import msgspec

from loadtest.plane.results import DIRECT, HandOver, MemorySample, Report, Sample
from loadtest.plane.rivals import NGINX, VLLM_ROUTER
from loadtest.plane.scenarios import BURST, LATENCY, PACED_1000, PLAIN

OURS = "tidegate auto"
PROXIES = (OURS, VLLM_ROUTER, NGINX)
CPU_US = {
    PLAIN.name: (100.0, 150.0, 25.0),
    BURST.name: (5.0, 10.0, 2.0),
    PACED_1000.name: (40.0, 40.0, 20.0),
}
"""Of the three."""
P50_US = {DIRECT: 200.0, OURS: 800.0, VLLM_ROUTER: 800.0, NGINX: 400.0}


def sample(scenario: str, proxy: str, **changes: Any) -> Sample:
    one = Sample(
        fleet="single",
        scenario=scenario,
        proxy=proxy,
        round=1,
        done=1000,
        failed=0,
        units=1000,
        cpu_us=None,
        per_s=500.0,
        p50_us=None,
        p99_us=None,
    )
    return msgspec.structs.replace(one, **changes)


def stream_memory(proxy: str, kilobytes: float, *, streams: int = 2000, number: int = 1) -> MemorySample:
    return MemorySample(fleet="single", proxy=proxy, round=number, streams=streams, bytes_per_stream=kilobytes * 1024)


def good_report(**changes: Any) -> Report:
    cpu = [
        sample(scenario, proxy, cpu_us=cpu_us)
        for scenario, costs in CPU_US.items()
        for proxy, cpu_us in zip(PROXIES, costs, strict=True)
    ]
    latency = [sample(LATENCY.name, proxy, p50_us=p50_us) for proxy, p50_us in P50_US.items()]
    report = Report(
        rounds=1,
        seconds=1.0,
        proxies=PROXIES,
        ours=[OURS],
        skipped=[],
        samples=[*cpu, *latency],
        memory=[stream_memory(OURS, 16.0), stream_memory(VLLM_ROUTER, 80.0)],
        hand_overs=[HandOver(proxy=OURS, gaps_us=[100.0, 150.0, 900.0], hops_us=[40.0])],
    )
    return msgspec.structs.replace(report, **changes)


def kernel(root: Path, pid: int, *, children: dict[int, str], ran_ns: dict[int, int], pages: int = 0) -> None:
    """The files of one process: of each thread its children and what it ran."""
    for thread, below in children.items():
        task = root / str(pid) / "task" / str(thread)
        task.mkdir(parents=True)
        (task / "children").write_text(below)
        (task / "schedstat").write_text(f"{ran_ns[thread]} 17 3\n")
    (root / str(pid) / "statm").write_text(f"999 {pages} 3 4 5 6 7\n")
