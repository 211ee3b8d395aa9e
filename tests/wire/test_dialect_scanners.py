import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.wire.dialects import ROUTES
from gateway.wire.scanner import Scanner
from gateway.wire.usage import Usage


def event(kind: str, **fields: Any) -> bytes:
    """An event as vLLM writes it."""
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


def scan(path: str, *reads: bytes) -> Scanner:
    """Feed one read per second, from second 0 on."""
    scanner = ROUTES[path].scanner()
    for second, read in enumerate(reads):
        scanner.feed(read, float(second))
    scanner.finish(float(len(reads)))
    return scanner


def seen(scanner: Scanner) -> tuple[Any, ...]:
    """Everything that must not depend on how the stream was cut."""
    return (scanner.content_events, scanner.usage, scanner.error, scanner.done, scanner.finish_reasons)


# --- responses -----------------------------------------------------------------------------------------------------

USAGE = {"input_tokens": 11, "input_tokens_details": {"cached_tokens": 4}, "output_tokens": 8, "total_tokens": 19}
RESPONSE = [
    event("response.created", response={"id": "r", "status": "in_progress", "usage": None}),
    event("response.output_item.added", item={"type": "message"}),
    event("response.reasoning_text.delta", delta="hm", sequence_number=3),
    event("response.output_text.delta", delta="", sequence_number=4),
    event("response.output_text.delta", delta='a "type":"response.completed"', sequence_number=5),
    event("response.function_call_arguments.delta", delta="{", sequence_number=6),
    event("response.output_text.done", text="a"),
    event("response.completed", response={"status": "completed", "usage": USAGE, "error": None}),
]


def test_a_streamed_response() -> None:
    scanner = scan("/v1/responses", *RESPONSE)
    usage = Usage(input_tokens=11, cached_tokens=4, output_tokens=8)
    assert seen(scanner) == (3, usage, None, True, ["completed"])
    assert (scanner.first_content_s, scanner.last_content_s) == (2.0, 5.0)
    assert scanner.first_text_s == 4.0
    assert scanner.take_itl() == [2.0, 1.0]


@pytest.mark.parametrize("size", [1, 7, 100_000])
def test_the_id_of_a_streamed_response(size: int) -> None:
    stream = b"".join(RESPONSE)
    scanner = scan("/v1/responses", *(stream[at : at + size] for at in range(0, len(stream), size)))
    assert scanner.response_id == "r"


@pytest.mark.parametrize("response", [None, {}, {"id": None}, {"id": 5}, {"id": ""}, {"id": "x" * 257}, "r"])
def test_a_response_without_an_id_that_could_be_kept(response: object) -> None:
    begun = event("response.created", response=response)
    assert scan("/v1/responses", begun, *RESPONSE[1:]).response_id is None
    body = json.dumps(response).encode()
    assert (read_id := ROUTES["/v1/responses"].response_id_of) is not None
    assert read_id(body) is None
    assert read_id(b'{"id":"resp_1","object":"response"}') == "resp_1"
    assert read_id(b'{"id":"' + b"x" * 256 + b'"}') == "x" * 256


def test_other_dialects_have_no_such_ids() -> None:
    stream = [event("response.created", response={"id": "r"}), b'data: {"id":"chatcmpl-1","choices":[]}\n\n']
    for path, dialect in ROUTES.items():
        if path != "/v1/responses":
            assert dialect.response_id_of is None
            assert scan(path, *stream).response_id is None


def test_a_response_that_was_cut_short() -> None:
    response = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}, "usage": USAGE}
    scanner = scan("/v1/responses", event("response.incomplete", response=response))
    assert (scanner.done, scanner.finish_reasons, scanner.error) == (True, ["max_output_tokens"], None)


def test_a_response_that_failed() -> None:
    response = {"status": "failed", "error": {"code": "server_error", "message": "boom"}}
    scanner = scan("/v1/responses", event("response.failed", response=response))
    assert (scanner.done, scanner.error, scanner.usage) == (True, "boom", None)


@pytest.mark.parametrize(
    "said", [event("error", code="x", message="boom", param=None), b'data: {"error":{"message":"boom"}}\n\n']
)
def test_an_error_ends_a_response(said: bytes) -> None:
    scanner = scan("/v1/responses", RESPONSE[4], said)
    assert (scanner.error, scanner.done, scanner.content_events) == ("boom", True, 1)


# --- messages ------------------------------------------------------------------------------------------------------

MESSAGE = [
    event(
        "message_start",
        message={"id": "m", "usage": {"input_tokens": 3, "cache_read_input_tokens": 30, "output_tokens": 1}},
    ),
    event("content_block_start", index=0, content_block={"type": "text", "text": ""}),
    event("ping"),
    event("content_block_delta", index=0, delta={"type": "thinking_delta", "thinking": "hm"}),
    event("content_block_delta", index=0, delta={"type": "signature_delta", "signature": "abc"}),
    event("content_block_delta", index=1, delta={"type": "text_delta", "text": "a\nb"}),
    event("content_block_delta", index=2, delta={"type": "input_json_delta", "partial_json": ""}),
    event("content_block_delta", index=2, delta={"type": "input_json_delta", "partial_json": "{"}),
    event("content_block_stop", index=2),
    event("message_delta", delta={"stop_reason": "tool_use", "stop_sequence": None}, usage={"output_tokens": 8}),
    event("message_stop"),
]


def test_a_streamed_message() -> None:
    scanner = scan("/v1/messages", *MESSAGE)
    usage = Usage(input_tokens=33, cached_tokens=30, output_tokens=8)
    assert seen(scanner) == (3, usage, None, True, ["tool_use"])
    assert (scanner.first_content_s, scanner.last_content_s) == (3.0, 7.0)
    assert scanner.first_text_s == 5.0


def test_a_message_without_its_end_is_not_done() -> None:
    scanner = scan("/v1/messages", *MESSAGE[:-2])
    assert (scanner.done, scanner.usage) == (False, Usage(input_tokens=33, cached_tokens=30, output_tokens=1))


def test_usage_is_cumulative_and_the_last_figure_of_each_count_stands() -> None:
    more = event(
        "message_delta", delta={}, usage={"input_tokens": 33, "cache_read_input_tokens": 0, "output_tokens": 9}
    )
    assert scan("/v1/messages", *MESSAGE, more).usage == Usage(input_tokens=33, cached_tokens=0, output_tokens=9)


def test_an_error_ends_a_message() -> None:
    said = event("error", error={"type": "overloaded_error", "message": "boom"})
    scanner = scan("/v1/messages", MESSAGE[5], said)
    assert (scanner.error, scanner.done, scanner.content_events) == ("boom", True, 1)


# --- both ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("path", "stream"), [("/v1/responses", RESPONSE), ("/v1/messages", MESSAGE)])
@given(ends=st.sampled_from([b"\n", b"\r\n"]), data=st.data())
def test_any_cut_of_a_stream_gives_the_same_scan(
    path: str, stream: list[bytes], ends: bytes, data: st.DataObject
) -> None:
    whole = b"".join([b": keep-alive\n\n", *stream, b"data: [DONE]\n\n"]).replace(b"\n", ends)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=12)))
    reads = [whole[start:stop] for start, stop in pairwise([0, *cuts, len(whole)])]
    assert seen(scan(path, *reads)) == seen(scan(path, *stream))


@given(
    st.sampled_from(["/v1/responses", "/v1/messages"]),
    st.lists(
        st.binary(max_size=50)
        | st.sampled_from(
            [*RESPONSE, *MESSAGE, b"data: ", b"\r", b"\n\n", b'data: {"type":5}\n\n', b'data: {"type":"error"}\n\n']
        )
        | st.sampled_from(
            [b'data: {"type":"response.completed","response":[]}\n\n', b'data: {"error":' + b"[" * 5000 + b"\n\n"]
        )
    ),
)
def test_a_scanner_never_raises(path: str, reads: list[bytes]) -> None:
    scanner = scan(path, *reads)
    assert scanner.content_events <= len(reads)
    assert scanner.usage is None or scanner.usage.output_tokens is not None or scanner.usage.input_tokens is not None
