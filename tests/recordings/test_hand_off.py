"""A recorded NIXL request through a gateway: its parameters go on byte for byte, its cached tokens are set right."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from gateway.core.path.rules import AlwaysRemote
from gateway.core.policy import Policy
from gateway.core.types import OutcomeKind
from gateway.core.types import Path as RoutedPath
from tests.recordings.exchanges import HTTP, Message
from tests.recordings.replay import ODD_WRITES, ReplayWorker, replay

pytestmark = [pytest.mark.shared_data, pytest.mark.e2e]

# (pd_nixl, nixl_chat) is not among them: its two legs were recorded in different runs.
FLOWS = [
    ("pd_nixl", "nixl_chat_again_local_hit"),
    ("pd_nixl", "nixl_chat_stream"),
    ("pd_nixl", "nixl_cmpl"),
    ("pd_nixl_tiny", "nixl_chat"),
    ("pd_nixl_tiny", "nixl_chat_again_local_hit"),
    ("pd_nixl_tiny", "nixl_chat_stream"),
    ("pd_nixl_tiny", "nixl_cmpl"),
]
PARAMS = re.compile(rb'"kv_transfer_params":(\{.*?\}),"')
CACHED = re.compile(rb'"cached_tokens":\d+')


def leg(folder: str, name: str) -> bytes:
    path = HTTP / folder / name
    if not path.exists():
        pytest.skip(f"the recording http/{folder}/{name} is absent")
    return path.read_bytes()


def http_answer(body: bytes, content_type: bytes) -> bytes:
    """These recordings have no heads; vLLM's is known from the others."""
    head = b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: %b\r\n" % content_type
    if content_type == b"application/json":
        return head + b"content-length: %d\r\n\r\n" % len(body) + body
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(event), event) for event in re.findall(rb".*?\n\n", body, re.DOTALL))
    return head + b"transfer-encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"


def request(client: dict[str, Any]) -> Message:
    path = b"/v1/completions" if "prompt" in client else b"/v1/chat/completions"
    headers = [(b"content-type", b"application/json")]
    return Message(start=b"POST " + path + b" HTTP/1.1", headers=headers, body=json.dumps(client).encode())


@pytest.mark.parametrize("write_sizes", [(), ODD_WRITES], ids=["whole", "odd"])
@pytest.mark.parametrize(("folder", "flow"), FLOWS)
async def test_a_recorded_hand_off(folder: str, flow: str, write_sizes: tuple[int, ...], tmp_path: Path) -> None:
    sent = json.loads(leg(folder, f"{flow}.2.decode.request.json"))
    client = {key: value for key, value in sent.items() if key != "kv_transfer_params"}
    prefill_answer = leg(folder, f"{flow}.1.prefill.response.json")
    streamed = client.get("stream", False)
    decode_answer = leg(folder, f"{flow}.2.decode.response.{'sse' if streamed else 'json'}")
    content_type = b"text/event-stream; charset=utf-8" if streamed else b"application/json"
    prefill = ReplayWorker(http_answer(prefill_answer, b"application/json"), write_sizes=write_sizes)
    decode = ReplayWorker(http_answer(decode_answer, content_type), write_sizes=write_sizes)

    models_page = json.dumps({"data": [{"id": client["model"]}]}).encode()
    policy = Policy(path=AlwaysRemote())
    async with replay(
        {"p0": prefill, "d0": decode}, log=tmp_path / "log", models_page=models_page, policy=policy
    ) as bench:
        answer = await bench.repeat(request(client))
        await bench.check_settled(1)
        assert (bench.failures("p0"), bench.failures("d0")) == (0, 0)

    usage = json.loads(prefill_answer)["usage"]
    cached_tokens = usage["prompt_tokens_details"]["cached_tokens"]
    assert (answer.status, answer.header(b"content-type")) == (200, content_type)
    assert answer.header(b"x-tidegate-path") == b"remote"
    assert answer.body == CACHED.sub(b'"cached_tokens":%d' % cached_tokens, decode_answer)
    check_legs(prefill, decode, client, prefill_answer, sent)
    (record,) = bench.records()
    assert record.decision is not None
    assert record.decision.path is RoutedPath.REMOTE
    assert record.outcome.kind is OutcomeKind.OK
    assert record.outcome.cached_tokens == cached_tokens
    assert record.outcome.input_tokens == usage["prompt_tokens"]


def check_legs(
    prefill: ReplayWorker, decode: ReplayWorker, client: dict[str, Any], prefill_answer: bytes, sent: dict[str, Any]
) -> None:
    (asked,), (told,) = prefill.asked, decode.asked
    asked_for = json.loads(asked.body)
    assert (asked_for["max_tokens"], asked_for["stream"]) == (1, False)
    assert asked_for["kv_transfer_params"]["do_remote_decode"] is True
    given = PARAMS.search(prefill_answer)
    assert given is not None
    assert told.body.endswith(b',"kv_transfer_params":' + given[1] + b"}")
    assert json.loads(told.body) == sent
    assert asked.header(b"x-request-id") == told.header(b"x-request-id")


@pytest.mark.parametrize("wrong", [b"null", b"{}", b"[]", b'"text"', b"7"])
async def test_a_recorded_prefill_answer_without_parameters_leaves_the_prompt_to_the_decode_worker(
    wrong: bytes, tmp_path: Path
) -> None:
    folder, flow = FLOWS[-1]
    sent = json.loads(leg(folder, f"{flow}.2.decode.request.json"))
    client = {key: value for key, value in sent.items() if key != "kv_transfer_params"}
    prefill_answer = PARAMS.sub(
        b'"kv_transfer_params":' + wrong + b',"', leg(folder, f"{flow}.1.prefill.response.json")
    )
    decode_answer = leg(folder, f"{flow}.2.decode.response.json")
    prefill = ReplayWorker(http_answer(prefill_answer, b"application/json"))
    decode = ReplayWorker(http_answer(decode_answer, b"application/json"))
    models_page = json.dumps({"data": [{"id": client["model"]}]}).encode()
    async with replay(
        {"p0": prefill, "d0": decode},
        log=tmp_path / "log",
        models_page=models_page,
        policy=Policy(path=AlwaysRemote()),
    ) as bench:
        answer = await bench.repeat(request(client))
        await bench.check_settled(1)
    assert json.loads(decode.asked[0].body) == client
    assert answer.body == decode_answer
