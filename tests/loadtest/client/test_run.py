import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

import pytest

from gateway.core.types import Endpoint
from loadtest.client.options import LoadOptions
from loadtest.client.records import Record
from loadtest.client.runner import LoadError, Progress, first_model, run_load, warm_up
from loadtest.traces.synthetic import uniform_mix
from loadtest.traces.types import TraceRequest
from tests.loadtest.client.scripted_server import (
    DONE,
    Answer,
    ScriptedServer,
    Seen,
    chunk,
    completion,
    content,
    event,
    replay,
    stream_head,
    usage,
    whole,
)

pytestmark = pytest.mark.e2e


@pytest.fixture
async def server() -> AsyncIterator[ScriptedServer]:
    async with ScriptedServer(completion) as server:
        yield server


@pytest.fixture
def options(server: ScriptedServer) -> LoadOptions:
    return LoadOptions(url=server.url, model="m", run_id="lt-1", speed=1000.0)


def trace(count: int = 1) -> list[TraceRequest]:
    return uniform_mix(count, isl_tokens=40, osl_tokens=3, rate_rps=10.0, seed=1)


async def one(server: ScriptedServer, options: LoadOptions, script: Callable[[Seen], Answer]) -> Record:
    server.script = script
    (record,) = await run_load(options, trace())
    return record


def answering(*pieces: bytes | None) -> Callable[[Seen], Answer]:
    return lambda _: replay(pieces)


async def hang(seen: Seen) -> Answer:
    del seen
    yield stream_head() + chunk(content())
    await asyncio.Event().wait()


async def test_a_request_asks_for_exactly_what_the_trace_says(server: ScriptedServer, options: LoadOptions) -> None:
    (request,) = trace()
    await run_load(options, [request])
    (seen,) = server.seen
    assert (seen.method, seen.target) == ("POST", "/v1/chat/completions")
    assert seen.headers["x-request-id"] == "lt-1-0"
    assert seen.headers["content-type"] == "application/json"
    body = seen.json
    (message,) = body.pop("messages")
    assert message["role"] == "user"
    assert len(message["content"]) == 4 * request.input_tokens
    assert body == {
        "model": "m",
        "max_tokens": 3,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


async def test_completions_carry_a_prompt(server: ScriptedServer) -> None:
    server.script = answering(whole(b"", 500))
    await run_load(LoadOptions(url=server.url, model="m", run_id="lt", endpoint=Endpoint.COMPLETIONS), trace())
    assert server.seen[0].target == "/v1/completions"
    assert len(server.seen[0].json["prompt"]) == 4 * trace()[0].input_tokens


async def test_key_and_session_travel_as_headers(server: ScriptedServer) -> None:
    with_session = TraceRequest(index=0, arrival_s=0.0, input_tokens=4, output_tokens=1, session="c7")
    without = TraceRequest(index=1, arrival_s=0.0, input_tokens=4, output_tokens=1)
    options = LoadOptions(url=server.url, model="m", run_id="lt", api_key="k", session_header="x-session-id")
    await run_load(options, [with_session, without])
    by_id = {seen.headers["x-request-id"]: seen.headers for seen in server.seen}
    assert by_id["lt-0"]["authorization"] == "Bearer k"
    assert by_id["lt-0"]["x-session-id"] == "c7"
    assert "x-session-id" not in by_id["lt-1"]


async def test_every_request_has_one_record_in_order(server: ScriptedServer, options: LoadOptions) -> None:
    requests = trace(40)
    records = await run_load(options, requests)
    assert [record.index for record in records] == list(range(40))
    assert all(record.ok and record.status == 200 and record.error is None for record in records)
    assert [record.input_tokens for record in records] == [request.input_tokens for request in requests]
    assert {(record.output_tokens, record.cached_tokens, record.itl_count) for record in records} == {(3, 0, 2)}
    assert len({record.request_id for record in records}) == 40
    assert len(server.seen) == 40


async def test_latencies_count_from_the_scheduled_time(options: LoadOptions) -> None:
    records = await run_load(options, trace(5))
    for record, request in zip(records, trace(5), strict=True):
        assert record.scheduled_s == request.arrival_s / 1000.0
        assert record.sent_s is not None
        assert record.ttft_s is not None
        assert record.e2e_s is not None
        assert record.lag_s == record.sent_s - record.scheduled_s
        assert record.lag_s <= record.ttft_s <= record.e2e_s


async def test_a_slow_answer_holds_no_other_request_up(server: ScriptedServer, options: LoadOptions) -> None:
    all_sent = asyncio.Event()

    async def after_the_last(seen: Seen) -> Answer:
        if len(server.seen) == 20:
            all_sent.set()
        await all_sent.wait()
        async for piece in completion(seen):
            yield piece

    server.script = after_the_last
    records = await run_load(options, trace(20))
    assert all(record.ok for record in records)


async def test_tidegates_headers_are_kept(server: ScriptedServer, options: LoadOptions) -> None:
    record = await one(
        server,
        options,
        lambda seen: completion(
            seen,
            "x-tidegate-path: remote",
            "x-tidegate-worker: d0",
            "x-tidegate-policy: priced",
            "x-tidegate-decision-id: 42",
        ),
    )
    assert (record.path, record.worker, record.policy, record.decision_id) == ("remote", "d0", "priced", "42")


async def test_other_gateways_have_no_path(options: LoadOptions) -> None:
    (record,) = await run_load(options, trace())
    assert (record.path, record.worker, record.policy, record.decision_id) == (None, None, None, None)


@pytest.mark.parametrize(
    ("pieces", "status", "error"),
    [
        (
            (whole(b'{"error": {"message": "all busy"}}', 503),),
            503,
            "http_503: all busy",
        ),
        ((stream_head(), chunk(content()), chunk(b"")), 200, "truncated"),
        (
            (stream_head(), chunk(event({"error": {"message": "engine died"}}) + DONE), chunk(b"")),
            200,
            "stream_error: engine died",
        ),
        ((stream_head(), chunk(content()), None), 200, "disconnected: the server closed the connection"),
        ((None,), None, "disconnected: the server closed the connection"),
        ((whole(b"<html>"),), 200, "truncated"),
    ],
)
async def test_failures_are_named(
    server: ScriptedServer,
    options: LoadOptions,
    pieces: Sequence[bytes | None],
    status: int | None,
    error: str,
) -> None:
    record = await one(server, options, answering(*pieces))
    assert not record.ok
    assert (record.status, record.error) == (status, error)
    assert record.sent_s is not None
    assert record.e2e_s is not None


async def test_a_stream_of_something_else_is_a_protocol_error(server: ScriptedServer, options: LoadOptions) -> None:
    record = await one(server, options, answering(stream_head(), chunk(b"data: <html>\n\n")))
    assert record.error_kind == "protocol"


async def test_a_server_that_is_gone_is_a_connect_error() -> None:
    async with ScriptedServer(completion) as gone:
        options = LoadOptions(url=gone.url, model="m", run_id="lt")
    (record,) = await run_load(options, trace())
    assert (record.error_kind, record.sent_s, record.lag_s, record.status) == ("connect", None, None, None)


async def test_a_request_that_takes_too_long_is_given_up(server: ScriptedServer) -> None:
    record = await one(server, LoadOptions(url=server.url, model="m", run_id="lt", timeout_s=0.3), hang)
    assert (record.ok, record.error, record.status) == (False, "timeout", 200)
    assert record.ttft_s is not None


async def test_stopping_keeps_the_records_so_far(server: ScriptedServer) -> None:
    server.script = lambda seen: completion(seen) if seen.headers["x-request-id"] == "lt-0" else hang(seen)
    requests = [
        TraceRequest(index=index, arrival_s=at_s, input_tokens=4, output_tokens=2)
        for index, at_s in enumerate((0.0, 0.0, 0.0, 3600.0))
    ]
    stop = asyncio.Event()

    def stop_after_the_first(progress: Progress) -> None:
        if (progress.sent, progress.done) == (3, 1):
            stop.set()

    options = LoadOptions(url=server.url, model="m", run_id="lt")
    records = await run_load(options, requests, on_progress=stop_after_the_first, stop=stop)
    assert [record.ok for record in records] == [True, False, False]
    assert [record.cancelled for record in records] == [False, True, True]


async def test_a_run_out_of_time_stops_by_itself(server: ScriptedServer) -> None:
    server.script = hang
    options = LoadOptions(url=server.url, model="m", run_id="lt", max_duration_s=0.1)
    requests = [TraceRequest(index=n, arrival_s=3600.0 * n, input_tokens=4, output_tokens=2) for n in range(2)]
    (record,) = await run_load(options, requests)
    assert record.cancelled


async def test_progress_is_told_at_every_step(server: ScriptedServer, options: LoadOptions) -> None:
    server.script = lambda seen: completion(seen) if len(server.seen) > 1 else replay((whole(b"", 500),))
    told: list[Progress] = []
    await run_load(options, trace(3), on_progress=told.append)
    assert told[-1] == Progress(total=3, sent=3, done=3, failed=1)
    assert len(told) == 6


async def test_warming_up_sends_small_prompts_that_the_trace_never_has(
    server: ScriptedServer, options: LoadOptions
) -> None:
    await warm_up(LoadOptions(url=server.url, model="m", run_id="lt", warm_up=2))
    warming = {seen.json["messages"][0]["content"] for seen in server.seen}
    await run_load(options, trace(20))
    later = {seen.json["messages"][0]["content"] for seen in server.seen[2:]}
    assert len(warming) == 2
    assert not {text[:40] for text in warming} & {text[:40] for text in later}


async def test_the_first_model_is_taken(server: ScriptedServer) -> None:
    server.script = answering(whole(b'{"object": "list", "data": [{"id": "a"}, {"id": "b"}]}'))
    assert await first_model(server.url, api_key="k") == "a"
    assert server.seen[0].target == "/v1/models"
    assert server.seen[0].headers["authorization"] == "Bearer k"


@pytest.mark.parametrize("answer", [whole(b'{"data": []}'), whole(b"nope", 404), whole(b"", 401)])
async def test_a_server_without_models_is_an_error(server: ScriptedServer, answer: bytes) -> None:
    server.script = answering(answer)
    with pytest.raises(LoadError, match="/v1/models named no model"):
        await first_model(server.url)


async def test_usage_alone_is_not_the_first_token(server: ScriptedServer, options: LoadOptions) -> None:
    record = await one(server, options, answering(stream_head(), chunk(usage(10, 0, 4) + DONE), chunk(b"")))
    assert record.ok
    assert (record.ttft_s, record.tpot_s, record.itl_max_s) == (None, None, None)
    assert (record.input_tokens, record.output_tokens, record.cached_tokens) == (10, 0, 4)
