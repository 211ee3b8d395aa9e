"""A fleet for the real client packages: every task of vLLM's API, both paths."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from loadtest.fleet.fleet import FleetSpec, RunningFleet, running_fleet
from loadtest.fleet.pools import parse_pools

TASKS = ("generate", "pooling", "transcription")


@pytest.fixture(scope="module")
def decision_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("clients") / "decisions.jsonl"


@pytest.fixture(scope="module")
def fleet(decision_log: Path) -> Iterator[RunningFleet]:
    spec = FleetSpec(
        pools=parse_pools("1P2D"),
        engine="h100-llama8b",
        speed=20.0,
        settings={
            "routing": {"policy": "remote"},
            "aliases": {"gpt-4o": "emulated-llm"},
            "telemetry": {"decision_log": str(decision_log)},
        },
        worker_overrides={"tasks": TASKS, "adapters": ("my-adapter",)},
    )
    with running_fleet(spec) as running:
        yield running
