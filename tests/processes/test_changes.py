"""What a process that begins later must be told."""

import json
from typing import Any

import pytest

from gateway.commands.processes.changes import Added, Changes, Drained, Removed, Routed


def changes(*calls: tuple[str, str] | tuple[str, str, Any]) -> Changes:
    noted = Changes()
    for method, path, *body in calls:
        noted.note(method, path, json.dumps(body[0]).encode() if body else b"")
    return noted


W1 = {"id": "w1", "url": "http://a:1"}
ADD, DRAIN, REMOVE = ("POST", "/workers", W1), ("POST", "/workers/w1/drain"), ("DELETE", "/workers/w1")


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        ([], []),
        ([ADD], [Added(W1)]),
        ([ADD, DRAIN, DRAIN], [Added(W1), Drained("w1")]),
        ([ADD, DRAIN, REMOVE], []),
        ([DRAIN], [Drained("w1")]),
        ([DRAIN, REMOVE], [Removed("w1")]),
        ([REMOVE, ADD], [Removed("w1"), Added(W1)]),
        ([REMOVE, ADD, REMOVE], [Removed("w1")]),
        (
            [("PUT", "/policy", {"policy": "local"}), ("PUT", "/policy", {"policy": "remote"})],
            [Routed({"policy": "remote"})],
        ),
        ([("POST", "/policy/off"), ("POST", "/settings/reload")], []),
    ],
)
def test_only_what_is_still_so_is_kept(calls: Any, expected: Any) -> None:
    assert changes(*calls).all() == expected


def test_what_a_reload_has_taken_over_is_not_done_again() -> None:
    noted = changes(ADD, ("POST", "/workers/w2/drain"), ("PUT", "/policy", {"policy": "local"}))
    noted.reloaded({"changed": ["workers", "slo.objective"], "workers_put": ["w1"], "workers_removed": []})
    assert noted.all() == [Drained("w2"), Routed({"policy": "local"})]
    noted.reloaded({"changed": ["routing.policy"], "workers_put": [], "workers_removed": ["w2"]})
    assert noted.all() == []
