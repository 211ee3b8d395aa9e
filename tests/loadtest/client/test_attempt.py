import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import cast

import pytest

from loadtest.client.attempt import Attempt, request_body
from loadtest.client.http import ConnectError, HttpClient, Sink
from loadtest.client.options import LoadOptions
from loadtest.client.records import Record
from loadtest.traces.types import TraceRequest
from tests.loadtest.client.scripted_server import DONE, content, role, usage

OPTIONS = LoadOptions(url="http://gw/v1", model="m", run_id="lt", speed=2.0)
REQUEST = TraceRequest(index=3, arrival_s=20.0, input_tokens=8, output_tokens=4)


class Played:
    """A client whose exchange is a list of (time, what the sink is told then)."""

    def __init__(self, *steps: tuple[float, Callable[[Sink], None]]) -> None:
        self.steps = steps
        self.now_s = 0.0

    async def send(self, method: str, target: str, sink: Sink, *, headers: Mapping[str, str], body: bytes) -> None:
        del method, target, headers, body
        for at_s, tell in self.steps:
            self.now_s = at_s
            tell(sink)

    async def record(self) -> Record:
        attempt = Attempt(OPTIONS, REQUEST, lambda: self.now_s)
        await attempt.run(cast("HttpClient", self), "/v1/chat/completions", b"{}")
        return attempt.record()


def sent(sink: Sink) -> None:
    sink.on_sent()


def head(status: int = 200) -> Callable[[Sink], None]:
    return lambda sink: sink.on_head(status, {"x-tidegate-path": "local"})


def body(data: bytes) -> Callable[[Sink], None]:
    return lambda sink: sink.on_body(data)


def nothing(sink: Sink) -> None:
    del sink


async def test_latencies_count_from_the_scheduled_time_not_from_the_sending() -> None:
    record = await Played(
        (10.5, sent),
        (11.0, head()),
        (11.5, body(role())),
        (12.0, body(content())),
        (12.25, body(content())),
        (13.5, body(content())),
        (13.5, body(usage(8, 5, 2))),
        (14.0, body(DONE)),
        (15.0, nothing),
    ).record()
    assert record == Record(
        request_id="lt-3", index=3, scheduled_s=10.0, sent_s=10.5, lag_s=0.5, status=200, ok=True, input_tokens=8,
        output_tokens=5, cached_tokens=2, ttft_s=2.0, tpot_s=1.5 / 4, itl_max_s=1.25, itl_p99_s=1.24, itl_count=2,
        e2e_s=5.0, path="local",
    )  # fmt: skip


async def test_the_last_sending_counts_when_a_kept_connection_was_stale() -> None:
    record = await Played((10.5, sent), (11.0, sent), (12.0, head(500))).record()
    assert record.sent_s == 11.0
    assert record.lag_s == 1.0


async def test_an_error_body_is_read_only_so_far() -> None:
    record = await Played((10.0, sent), (10.0, head(500)), *[(11.0, body(b"x" * 3_000))] * 9, (12.0, nothing)).record()
    assert record.error == "http_500: " + "x" * 200
    assert record.e2e_s == 2.0


async def test_a_failure_to_connect_still_has_an_end() -> None:
    def refuse(sink: Sink) -> None:
        raise ConnectError("refused")

    record = await Played((10.75, refuse)).record()
    assert (record.error, record.sent_s, record.e2e_s) == ("connect: refused", None, 0.75)


async def test_an_attempt_that_never_ended_is_a_cancelled_one() -> None:
    attempt = Attempt(OPTIONS, REQUEST, lambda: 10.0)
    assert attempt.record().cancelled
    assert attempt.record().e2e_s is None


async def test_a_cancelled_attempt_passes_the_cancellation_on() -> None:
    def cancel(sink: Sink) -> None:
        raise asyncio.CancelledError

    attempt = Attempt(OPTIONS, REQUEST, lambda: 11.0)
    with pytest.raises(asyncio.CancelledError):
        await attempt.run(cast("HttpClient", Played((11.0, sent), (11.0, cancel))), "/", b"")
    assert attempt.record().cancelled
    assert attempt.record().e2e_s == 1.0


def test_members_of_the_body_are_added_and_replace_none_that_the_load_needs() -> None:
    options = replace(OPTIONS, body_members={"temperature": 0, "max_tokens": 1, "model": "other"})
    sent = json.loads(request_body(options, REQUEST, "hello"))
    assert sent == json.loads(request_body(OPTIONS, REQUEST, "hello")) | {"temperature": 0}
