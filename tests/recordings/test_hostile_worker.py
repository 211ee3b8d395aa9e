"""llama.cpp's server in vLLM's place: whatever it says reaches the client, and none of it bends the gateway."""

import json
import math
from pathlib import Path

import pytest

from gateway.core.calibration import MAX_BYTES_PER_TOKEN, MIN_BYTES_PER_TOKEN
from gateway.core.types import OutcomeKind
from tests.recordings.exchanges import Exchange, exchange, parse, recorded
from tests.recordings.replay import ODD_WRITES, Replay, ReplayWorker, framed, replay

pytestmark = [pytest.mark.shared_data, pytest.mark.e2e]

FOLDER = "llama_cpp"
MODEL = "smollm2"
# llama.cpp answers some of these; the gateway cannot route them.
REFUSED = {
    "err_bad_json": 400,
    "err_bad_max_tokens": 400,
    "err_empty_messages": 400,
    "err_missing_messages": 400,
    "err_missing_prompt": 400,
    "err_bad_model": 404,
    "err_bad_model_stream": 404,
}


def routed(pair: Exchange) -> bool:
    return pair.is_routed and pair.name not in REFUSED


def models_page() -> bytes:
    return exchange(FOLDER, "get_models").response.body


async def check_unbent(bench: Replay, requests: int) -> None:
    """The books are in order, and what was learnt is what a worker could honestly have taught."""
    await bench.check_settled(requests)
    calibration = bench.gateway.router.calibration
    assert MIN_BYTES_PER_TOKEN <= calibration.bytes_per_token(MODEL) <= MAX_BYTES_PER_TOKEN
    assert all(MIN_BYTES_PER_TOKEN <= value <= MAX_BYTES_PER_TOKEN for value in calibration.models().values())
    assert math.isfinite(calibration.osl_tokens(MODEL))
    assert calibration.osl_tokens(MODEL) >= 0


@pytest.mark.parametrize("pair", recorded(FOLDER, routed))
async def test_a_hostile_answer_reaches_the_client_as_it_is(pair: Exchange, tmp_path: Path) -> None:
    await check_reaches(pair, ReplayWorker(pair.response_bytes), tmp_path)


@pytest.mark.parametrize("pair", recorded(FOLDER, lambda pair: routed(pair) and pair.is_stream))
async def test_a_hostile_stream_in_odd_pieces_reaches_the_client_as_it_is(pair: Exchange, tmp_path: Path) -> None:
    await check_reaches(pair, ReplayWorker(pair.response_bytes, write_sizes=ODD_WRITES), tmp_path)


async def check_reaches(pair: Exchange, worker: ReplayWorker, tmp_path: Path) -> None:
    async with replay({"w0": worker}, log=tmp_path / "log", models_page=models_page()) as bench:
        answer = await bench.repeat(pair.request)
        await check_unbent(bench, 1)
        assert bench.failures("w0") == (1 if pair.response.status >= 500 else 0)
    assert len(worker.asked) == 1
    assert (answer.status, answer.body) == (pair.response.status, pair.response.body)
    assert answer.header(b"content-type") == pair.response.header(b"content-type")
    # The worker's own id is of no use to a client whose id was replaced on the way.
    assert [name for name, _ in answer.headers].count(b"x-request-id") == 1
    assert answer.header(b"x-request-id") != pair.response.header(b"x-request-id")
    (record,) = bench.records()
    assert (record.outcome.status, record.outcome.kind) == (answer.status, kind_of(answer.status))


def kind_of(status: int) -> OutcomeKind:
    if status >= 500:
        return OutcomeKind.UPSTREAM_ERROR
    return OutcomeKind.CLIENT_ERROR if status >= 400 else OutcomeKind.OK


@pytest.mark.parametrize("name", REFUSED)
async def test_what_a_hostile_worker_would_answer_is_refused_before_it(name: str, tmp_path: Path) -> None:
    pair = exchange(FOLDER, name)
    worker = ReplayWorker(pair.response_bytes)
    async with replay({"w0": worker}, log=tmp_path / "log", models_page=models_page()) as bench:
        answer = await bench.repeat(pair.request)
        await check_unbent(bench, 1)
        assert bench.failures("w0") == 0
    assert worker.asked == []
    assert answer.status == REFUSED[name]
    assert json.loads(answer.body)["error"]["type"] == "invalid_request_error"
    assert len(bench.records()) == 1


async def test_all_hostile_answers_one_after_the_other(tmp_path: Path) -> None:
    exchange(FOLDER, "chat_plain")
    pairs = [case.values[0] for case in recorded(FOLDER, routed)]
    worker = ReplayWorker()
    async with replay({"w0": worker}, log=tmp_path / "log", models_page=models_page()) as bench:
        for pair in pairs:
            worker.answer = pair.response_bytes
            assert (await bench.repeat(pair.request)).body == pair.response.body
        await check_unbent(bench, len(pairs))
    assert len(bench.records()) == len(pairs)


@pytest.mark.parametrize("name", ["chat_plain", "chat_stream", "cmpl_stream", "chat_tool_named_stream"])
async def test_an_answer_that_breaks_off_anywhere_is_never_passed_on_as_whole(name: str, tmp_path: Path) -> None:
    pair = exchange(FOLDER, name)
    head_bytes = pair.response_bytes.index(b"\r\n\r\n") + 4
    cuts = [*range(0, len(pair.response_bytes), 97), head_bytes - 1, head_bytes, len(pair.response_bytes) - 1]
    worker = ReplayWorker()
    async with replay({"w0": worker}, log=tmp_path / "log", models_page=models_page()) as bench:
        for cut in cuts:
            worker.answer = pair.response_bytes[:cut]
            raw = await bench.send(framed(pair.request))
            if cut < head_bytes:
                check_bad_gateway(raw)
            else:
                check_broken_off(raw, pair, cut)
        await check_unbent(bench, len(cuts))
    records = bench.records()
    assert len(records) == len(cuts)
    assert {record.outcome.kind for record in records} == {OutcomeKind.UPSTREAM_ERROR}


def check_bad_gateway(raw: bytes) -> None:
    answer = parse(raw)
    assert answer.status == 502
    assert json.loads(answer.body)["error"]["code"] == "bad_gateway"


def check_broken_off(raw: bytes, pair: Exchange, cut: int) -> None:
    """The client can tell: the framing is not whole, or the stream says so in its last event."""
    if not pair.is_stream or b"[DONE]" in pair.response_bytes[:cut]:
        with pytest.raises(ValueError, match=r"content-length|has no end|not whole"):
            parse(raw)
        return
    told, found, rest = parse(raw).body.rpartition(b'data: {"error"')
    assert found
    assert b'"code":"bad_gateway"' in rest
    assert rest.endswith(b"\n\ndata: [DONE]\n\n")
    assert pair.response.body.startswith(told.removesuffix(b"\n\n"))
