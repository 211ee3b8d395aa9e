"""What each of several processes has for itself."""

from pathlib import Path
from typing import Any

import pytest

from gateway.commands.processes.identity import Process, replicated
from gateway.commands.processes.parent import conversations_apart
from gateway.settings import Settings


def process(number: int = 1, generation: int = 0) -> Process:
    return Process(number=number, of=2, generation=generation, folder="/run/t", port=9)


def test_each_has_files_of_its_own_and_the_port_of_all() -> None:
    settings = Settings(telemetry={"decision_log": "log/decisions.jsonl", "journal": "journal"}, server={"port": 0})  # type: ignore[arg-type] # pydantic reads it
    own, later = process().own(settings), process(generation=2).own(settings)
    assert own.telemetry.decision_log == Path("log/decisions-1.jsonl") == later.telemetry.decision_log
    assert (own.telemetry.journal, later.telemetry.journal) == (Path("journal-1"), Path("journal-1-2"))
    assert own.server.port == 9
    assert process().own(Settings()).telemetry.decision_log is None


def test_a_successor_listens_elsewhere_and_its_decisions_are_its_own() -> None:
    assert process().socket != process(generation=1).socket
    assert process().instance != process().instance
    assert process().instance.endswith("p1")


@pytest.mark.parametrize(
    ("routing", "expected"),
    [
        ({}, {"replicas": 2}),
        ({"replicas": 1, "replica": None}, {"replicas": 2}),
        ({"replicas": 10}, {}),
        ({"replicas": 10, "replica": 3}, {}),
        ({"replicas": "many"}, {}),
    ],
)
def test_processes_count_as_replicas(routing: dict[str, Any], expected: dict[str, int]) -> None:
    assert replicated(routing, 2) == expected


@pytest.mark.parametrize(
    ("conversation", "shared", "warns"),
    [
        ({}, {}, False),
        ({"pinning": "load"}, {}, True),
        ({"mode": "conserve"}, {}, True),
        ({"by_model": {"llama": "conserve"}}, {}, True),
        ({"mode": "off", "pinning": "load"}, {}, False),
        ({"mode": "conserve"}, {"url": "redis://pins"}, False),
    ],
)
def test_conversations_that_each_would_hold_by_itself_are_warned_of(
    conversation: dict[str, Any], shared: dict[str, Any], warns: bool
) -> None:
    tree: Any = {"routing": {"conversation": conversation}, "shared": shared, "server": {"workers": 2}}
    words = conversations_apart(Settings(**tree))
    assert (words is not None) == warns
    assert words is None or "shared.url" in words
