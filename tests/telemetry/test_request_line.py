"""When a request's line says that it was written."""

import json

from gateway.core.types import RequestId
from gateway.telemetry.request_line import RequestLines
from tests.telemetry.telemetry_factories import a_decision, an_outcome


def timestamps(*times_s: float) -> list[str]:
    """What lines written at these times say of them."""
    written: list[bytes] = []
    clock = iter(times_s)
    request_lines = RequestLines(written.append, level=0, wall_clock=lambda: next(clock))
    for _ in times_s:
        request_lines.finished(a_decision(), an_outcome(), RequestId("r-1"), "llama")
    assert all(line.endswith(b"}\n") for line in written)
    return [json.loads(line)["timestamp"] for line in written]


def test_times_are_utc_with_microseconds() -> None:
    assert timestamps(0.5, 0.9999999, 1.0, 1_767_225_599.25, 1_767_225_600.000001) == [
        "1970-01-01T00:00:00.500000Z",
        "1970-01-01T00:00:00.999999Z",
        "1970-01-01T00:00:01.000000Z",
        "2025-12-31T23:59:59.250000Z",
        "2026-01-01T00:00:00.000000Z",
    ]


def test_a_clock_that_is_set_back_is_followed() -> None:
    assert timestamps(90.0, 30.0) == ["1970-01-01T00:01:30.000000Z", "1970-01-01T00:00:30.000000Z"]
