import json
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.types import Endpoint
from gateway.wire.sse import SseScanner
from gateway.wire.usage import Usage

USAGE = {"prompt_tokens": 33, "total_tokens": 41, "completion_tokens": 8}
USAGE_SEEN = Usage(input_tokens=33, cached_tokens=None, output_tokens=8)


def chunk(*choices: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": choices, **fields}


def delta(finish_reason: str | None = None, /, index: int = 0, **fields: Any) -> dict[str, Any]:
    return {"index": index, "delta": fields, "logprobs": None, "finish_reason": finish_reason, "token_ids": None}


def text(value: str | None, finish_reason: str | None = None) -> dict[str, Any]:
    return {"index": 0, "text": value, "logprobs": None, "finish_reason": finish_reason}


def event(document: object) -> bytes:
    """An event as vLLM writes it."""
    return b"data: " + json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode() + b"\n\n"


def say(value: str) -> bytes:
    return event(chunk(delta(content=value)))


ROLE = event(chunk(delta(role="assistant", content="")))
END = event(chunk(delta("stop")))
FINAL_USAGE = event(chunk(usage=USAGE))
DONE = b"data: [DONE]\n\n"


def scan(*reads: bytes, endpoint: Endpoint = Endpoint.CHAT, **kwargs: Any) -> SseScanner:
    """Feed one read per second, from second 0 on."""
    scanner = SseScanner(endpoint, **kwargs)
    for second, read in enumerate(reads):
        scanner.feed(read, float(second))
    return scanner


def seen(scanner: SseScanner) -> tuple[Any, ...]:
    """Everything that must not depend on how the stream was cut."""
    return (
        scanner.content_events,
        scanner.usage,
        scanner.error,
        scanner.done,
        scanner.finish_reasons,
        scanner.overflowed,
        scanner.first_content_s is None,
    )


def test_a_whole_stream() -> None:
    scanner = scan(ROLE, say("Hel"), say("lo"), END, FINAL_USAGE, DONE)
    assert scanner.content_events == 2
    assert (scanner.first_content_s, scanner.last_content_s) == (1.0, 2.0)
    assert scanner.usage == USAGE_SEEN
    assert scanner.finish_reasons == ["stop"]
    assert scanner.done
    assert scanner.error is None
    assert not scanner.overflowed


def test_nothing_is_known_before_the_first_byte() -> None:
    scanner = scan()
    assert seen(scanner) == (0, None, None, False, [], False, True)
    assert scanner.take_itl() == []


@pytest.mark.parametrize(
    "fields",
    [
        {"content": "x"},
        {"content": " "},
        {"content": None, "tool_calls": [{"index": 0, "function": {"arguments": ""}}]},
        {"content": "", "reasoning": "hm"},
        {"reasoning_content": "hm"},
        {"refusal": "no"},
        {"function_call": {"name": "f", "arguments": ""}},
        {"audio": {"data": "AAAA"}},
        {"content": [{"type": "text", "text": "x"}]},
    ],
)
def test_a_delta_with_content(fields: dict[str, Any]) -> None:
    assert scan(event(chunk(delta(**fields)))).content_events == 1


@pytest.mark.parametrize(
    "document",
    [
        chunk(delta(role="assistant", content="")),
        chunk(delta(role="assistant")),
        chunk(delta()),
        chunk(delta("length", content="")),
        chunk({**delta(content=""), "logprobs": {"content": [{"token": "", "logprob": -0.1, "bytes": []}]}}),
        chunk({**delta(content=""), "token_ids": [201]}),
        chunk(delta(content=None, tool_calls=None, function_call=None, reasoning=None)),
        chunk(delta(content="", tool_calls=[])),
        chunk({"index": 0, "delta": None}),
        chunk(usage=USAGE),
        chunk(),
        {"choices": None},
        {},
    ],
)
def test_an_event_without_content(document: dict[str, Any]) -> None:
    scanner = scan(event(document))
    assert scanner.content_events == 0
    assert scanner.first_content_s is None


def test_completions_count_text() -> None:
    reads = [event(chunk(text(value))) for value in ("", "a", None, "b")]
    assert scan(*reads, endpoint=Endpoint.COMPLETIONS).content_events == 2


def test_a_token_without_text_between_two_with_text_is_not_counted() -> None:
    scanner = scan(say("a"), say(""), say("b"), say(""))
    assert scanner.content_events == 2
    assert scanner.last_content_s == 2.0


def test_one_event_with_several_choices_counts_once() -> None:
    both = event(chunk(delta("stop", content="x"), delta("length", content="y")))
    scanner = scan(both)
    assert scanner.content_events == 1
    assert scanner.finish_reasons == ["stop", "length"]


def test_a_finish_with_text_in_the_same_event_is_seen_after_plain_ones() -> None:
    last = event(chunk(delta("length", content="c")))
    scanner = scan(say("a"), say("b"), last)
    assert scanner.content_events == 3
    assert scanner.finish_reasons == ["length"]


def test_a_finish_between_the_head_and_tail_of_plain_events_is_seen() -> None:
    both = event(chunk(delta("stop", content="x"), delta(content="y")))
    scanner = scan(say("a"), both)
    assert scanner.content_events == 2
    assert scanner.finish_reasons == ["stop"]


def test_a_usage_that_comes_again_is_the_last_again() -> None:
    early = event(chunk(delta(content="a"), usage={**USAGE, "completion_tokens": 1}))
    scanner = scan(early, FINAL_USAGE, early.replace(b'"content":"a"', b'"content":"b"'))
    assert scanner.usage is not None
    assert scanner.usage.output_tokens == 1


def test_the_last_of_continuous_usage_wins() -> None:
    first = event(chunk(delta(content="a"), usage={**USAGE, "completion_tokens": 1}))
    last = event(chunk(usage={**USAGE, "prompt_tokens_details": {"cached_tokens": 32}}))
    scanner = scan(first, last)
    assert scanner.content_events == 1
    assert scanner.usage == Usage(input_tokens=33, cached_tokens=32, output_tokens=8)


def test_a_null_usage_is_none_and_does_not_hide_an_earlier_one() -> None:
    assert scan(event(chunk(delta(content="a"), usage=None))).usage is None
    assert scan(FINAL_USAGE, event(chunk(delta(content="a"), usage=None))).usage == USAGE_SEEN


@pytest.mark.parametrize(
    ("error", "message"),
    [
        ({"message": "out of memory", "type": "InternalServerError", "param": None, "code": 500}, "out of memory"),
        ("plain", "plain"),
        ({"code": 500}, '{"code":500}'),
    ],
)
def test_an_error_event(error: object, message: str) -> None:
    scanner = scan(say("a"), event({"error": error}), DONE)
    assert (scanner.error, scanner.done) == (message, True)


def test_an_error_that_cannot_be_decoded_is_still_an_error() -> None:
    assert scan(b'data: {"error":"\xff"}\n\n').error == '"\ufffd"'


def test_a_null_error_is_none() -> None:
    assert scan(event(chunk(delta(content="a"), error=None))).error is None


def test_done_inside_a_text_is_not_the_end() -> None:
    assert not scan(say("data: [DONE]\n\n")).done


@pytest.mark.parametrize(
    "stream",
    [
        b'data:{"choices":[{"delta":{"content":"a"}}]}\n\ndata:[DONE]\n\n',
        b'data: {"choices":[{"delta":{"content":"a"}}]}\r\n\r\ndata: [DONE]\r\n\r\n',
        b'data: {"choices":[{"delta":{"content":"a"}}]}\r\rdata: [DONE]\r\r',
        b'\xef\xbb\xbfdata: {"choices":[{"delta":{"content":"a"}}]}\n\ndata: [DONE]\n\n',
        b': ping\n\nid: 7\nevent: message\ndata: {"choices":[{"delta":{"content":"a"}}]}\n\n\n\ndata: [DONE]\n\n',
        b'data: {"choices":\ndata: [{"delta":\n: note\ndata:  {"content":"a"}}]}\n\ndata: [DONE] \n\n',
        b'data: {"choices":\r\ndata: [{"delta":{"content":"a"}}]}\r\n\r\ndata: [DONE]\r\n\r\n',
        b'retry: 10\ndata: {"choices": [ {"delta" : {"content" : "a"} } ] }\n: x\n\ndata: [DONE]\n\n',
    ],
    ids=["no-space", "crlf", "cr", "bom", "comment-and-fields", "multi-line", "multi-line-crlf", "spaces"],
)
def test_every_legal_framing_reads_the_same_however_it_is_cut(stream: bytes) -> None:
    assert seen(scan(stream)) == (1, None, None, True, [], False, False)
    for cut in range(len(stream) + 1):
        assert seen(scan(stream[:cut], stream[cut:])) == seen(scan(stream)), cut
    assert seen(scan(*(stream[i : i + 1] for i in range(len(stream))))) == seen(scan(stream))


@pytest.mark.parametrize(
    "noise", [b"data: {broken\n\n", b"data: [1]\n\n", b"\xff\x00\n\n", b"data\n\n", b'data: {"choices":5}\n\n']
)
def test_noise_between_events_is_passed_over(noise: bytes) -> None:
    assert scan(say("a"), noise, say("b"), DONE).content_events == 2


def test_absurd_nesting_is_passed_over() -> None:
    assert scan(b'data: {"x":' + b"[" * 100_000 + b"\n\n", say("a")).content_events == 1


# --- pace ----------------------------------------------------------------------------------------------------------


def test_gaps_are_those_between_reads_with_content() -> None:
    scanner = scan(ROLE, say("a"), b": ping\n\n", say("b"), say("c"), END)
    assert scanner.itl_s == [2.0, 1.0]


def test_a_gap_is_spread_over_the_events_of_a_read() -> None:
    assert scan(say("a"), say("b") + say("c") + say("d") + say("e")).itl_s == [0.25] * 4


def test_the_first_read_has_no_gap_however_many_events_it_holds() -> None:
    scanner = scan(ROLE + say("a") + say("b"), say("c"))
    assert scanner.itl_s == [1.0]
    assert scanner.content_events == 3


def test_an_event_counts_when_its_last_byte_is_read() -> None:
    whole = say("a")
    scanner = scan(whole[:40], whole[40:])
    assert scanner.first_content_s == 1.0


def test_taken_gaps_are_not_given_twice() -> None:
    scanner = scan(say("a"), say("b"))
    assert scanner.take_itl() == [1.0]
    assert scanner.take_itl() == []
    scanner.feed(say("c"), 5.0)
    assert scanner.take_itl() == [4.0]


def test_gaps_add_up_to_the_time_between_first_and_last_content() -> None:
    scanner = scan(say("a"), say("b") + say("c"), b"", say("d"))
    assert scanner.first_content_s is not None
    assert scanner.last_content_s is not None
    assert sum(scanner.itl_s) == scanner.last_content_s - scanner.first_content_s


# --- bounds --------------------------------------------------------------------------------------------------------


def test_an_event_without_end_stops_the_scan_and_holds_no_memory() -> None:
    scanner = scan(say("a"), max_event_bytes=1000)
    for _ in range(20):
        scanner.feed(b"x" * 100, 1.0)
    assert scanner.overflowed
    assert not scanner._pending
    scanner.feed(b"\n\n" + say("b") + DONE, 2.0)
    assert (scanner.content_events, scanner.done) == (1, False)


def test_an_event_of_exactly_the_bound_is_read() -> None:
    whole = say("a" * 500)
    bound = len(whole) - 2
    assert scan(whole, max_event_bytes=bound).content_events == 1
    assert scan(whole[:-1], whole[-1:], max_event_bytes=bound).content_events == 1
    assert scan(whole, max_event_bytes=bound - 1).overflowed


def test_a_body_that_ends_without_a_blank_line() -> None:
    scanner = scan(say("a"), say("b").rstrip())
    assert scanner.content_events == 1
    scanner.finish(9.0)
    assert (scanner.content_events, scanner.last_content_s) == (2, 9.0)
    done = scan(b"data: [DONE]\n")
    assert not done.done
    done.finish(1.0)
    assert done.done


# --- properties ----------------------------------------------------------------------------------------------------


@dataclass
class Reference:
    """A slow scan that decodes every event in full."""

    endpoint: Endpoint
    content_events: int = 0
    finish_reasons: list[str] = field(default_factory=list)

    def read(self, document: dict[str, Any]) -> None:
        said = False
        for choice in document.get("choices") or []:
            if choice.get("finish_reason") is not None:
                self.finish_reasons.append(choice["finish_reason"])
            said = said or self._says(choice)
        self.content_events += said

    def _says(self, choice: dict[str, Any]) -> bool:
        if self.endpoint is Endpoint.COMPLETIONS:
            return bool(choice.get("text"))
        keys = ("content", "reasoning", "reasoning_content", "tool_calls", "function_call", "refusal", "audio")
        return any((choice.get("delta") or {}).get(key) for key in keys)


words = st.sampled_from(
    ["", "a", '"', "\\", '"}', "\n", "é", "]}", "data: [DONE]", "\\\\", 'x"},"finish_reason":"stop']
)
finishes = st.sampled_from([None, None, None, "stop", "length"])
chat_choices = st.builds(
    lambda finish, index, fields: delta(finish, index=index, **fields),
    finishes,
    st.integers(0, 1),
    st.fixed_dictionaries({}, optional={"role": st.just("assistant"), "content": words, "reasoning": words}),
)
text_choices = st.builds(text, words, finishes)
usages = st.fixed_dictionaries(
    {}, optional={"usage": st.sampled_from([None, USAGE, {**USAGE, "completion_tokens": 3}])}
)


def documents(choices: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[list[dict[str, Any]]]:
    one = st.builds(lambda some, usage: chunk(*some, **usage), st.lists(choices, max_size=2), usages)
    plain = choices.map(chunk)
    return st.lists(plain | plain | one | st.just({"error": {"message": "e"}}), max_size=12)


spelling = st.sampled_from([(",", ":"), (", ", ": ")])
ends = st.sampled_from([b"\n", b"\r\n"])


@given(
    documents(chat_choices).map(lambda some: (Endpoint.CHAT, some))
    | documents(text_choices).map(lambda some: (Endpoint.COMPLETIONS, some)),
    spelling,
    st.booleans(),
)
def test_a_scan_agrees_with_full_decoding(
    case: tuple[Endpoint, list[dict[str, Any]]], separators: tuple[str, str], ascii_only: bool
) -> None:
    endpoint, some = case
    reference = Reference(endpoint)
    scanner = SseScanner(endpoint)
    for document in some:
        reference.read(document)
        encoded = json.dumps(document, separators=separators, ensure_ascii=ascii_only).encode()
        scanner.feed(b"data: " + encoded + b"\n\n", 0.0)
    assert scanner.content_events == reference.content_events
    assert scanner.finish_reasons == reference.finish_reasons
    last = [document["usage"] for document in some if document.get("usage")]
    assert (scanner.usage.output_tokens if scanner.usage else None) == (last[-1]["completion_tokens"] if last else None)
    assert (scanner.error is not None) == any("error" in document for document in some)


@given(documents(chat_choices), ends, st.data())
def test_any_cut_of_a_stream_gives_the_same_scan(some: list[dict[str, Any]], end: bytes, data: st.DataObject) -> None:
    noise = st.sampled_from([b"", b": ping\n\n", b"\n", b"event: x\n"])
    stream = b"".join(data.draw(noise) + event(document) for document in some) + DONE
    stream = stream.replace(b"\n", end)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    reads = [stream[start:stop] for start, stop in pairwise([0, *cuts, len(stream)])]
    assert seen(scan(*reads)) == seen(scan(stream))


@given(st.lists(st.binary(max_size=50) | st.sampled_from([ROLE, say("a"), DONE, b"data: ", b"\r", b"\n\n"])))
def test_the_scanner_never_raises(reads: list[bytes]) -> None:
    scanner = scan(*reads, max_event_bytes=200)
    scanner.finish(99.0)
    assert seen(scan(b"".join(reads), max_event_bytes=200))[0] <= len(b"".join(reads))


def test_text_for_the_user_is_told_apart_from_reasoning_and_tools() -> None:
    thought = event(chunk({"index": 0, "delta": {"reasoning_content": "hm"}, "finish_reason": None}))
    called = event(chunk({"index": 0, "delta": {"tool_calls": [{"index": 0}]}, "finish_reason": None}))
    scanner = scan(ROLE, thought, called, say("a"), say("b"))
    assert (scanner.first_content_s, scanner.first_text_s) == (1.0, 3.0)
    assert scan(ROLE, thought, called, END).first_text_s is None
    text = event({"choices": [{"index": 0, "text": "a", "finish_reason": None}]})
    assert scan(text, endpoint=Endpoint.COMPLETIONS).first_text_s == 0.0
