import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.wire.usage_edit import StreamEdit, inject_usage, set_cached_tokens

USAGE = {"prompt_tokens": 33, "total_tokens": 41, "completion_tokens": 8}


def event(document: object, *, end: bytes = b"\n") -> bytes:
    """An event as vLLM writes it."""
    encoded = json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()
    return b"data: " + encoded + end + end


def chunk(*texts: str, **fields: Any) -> dict[str, Any]:
    choices = [{"index": 0, "delta": {"content": text}} for text in texts]
    return {"id": "c", "choices": choices, **fields}


SAY = event(chunk("hi"))
EXTRA = event(chunk(usage=USAGE))
DONE = b"data: [DONE]\n\n"


def edit(*reads: bytes, **kwargs: Any) -> bytes:
    stream_edit = StreamEdit(**kwargs)
    return b"".join([*(stream_edit.feed(read) for read in reads), stream_edit.finish()])


# --- asking for usage ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "asked"),
    [
        (b'{"model":"m"}', b'{"model":"m","stream_options":{"include_usage":true}}'),
        (b'{ "a" : 1e400,\n "b" :12345678901234567890 }\n', None),
        (b'{"stream_options": null}', b'{"stream_options": {"include_usage":true}}'),
        (b'{"stream_options":{}}', b'{"stream_options":{"include_usage":true}}'),
        (b'{"stream_options":{"include_usage" : false},"x":1}', b'{"stream_options":{"include_usage" : true},"x":1}'),
        (
            b'{"stream_options":{"continuous_usage_stats":true}}',
            b'{"stream_options":{"continuous_usage_stats":true,"include_usage":true}}',
        ),
        (b"{}", b'{"stream_options":{"include_usage":true}}'),
    ],
)
def test_a_stream_is_asked_for_its_usage(body: bytes, asked: bytes | None) -> None:
    expected = asked or body.rstrip()[:-1] + b',"stream_options":{"include_usage":true}}\n'
    assert inject_usage(body) == expected


def test_asking_twice_changes_nothing() -> None:
    once = inject_usage(b'{"model": "m"}')
    assert inject_usage(once) == once


def test_the_words_stream_options_inside_a_message_are_no_stream_options() -> None:
    body = json.dumps({"messages": [{"content": '"stream_options": {}'}], "stream_options": {}}).encode()
    assert json.loads(inject_usage(body)) == {**json.loads(body), "stream_options": {"include_usage": True}}


def test_of_repeated_stream_options_the_last_counts() -> None:
    asked = inject_usage(b'{"stream_options":{"a":1},"x":1,"stream_options":{"b":2}}')
    assert json.loads(asked)["stream_options"] == {"b": 2, "include_usage": True}


@pytest.mark.parametrize("body", [b'{"stream_options":5}', b"[]", b"", b"{", b'{"x":' + b"[" * 100_000])
def test_what_cannot_be_asked_is_left_to_the_worker(body: bytes) -> None:
    assert inject_usage(body) == body


# --- hiding --------------------------------------------------------------------------------------------------------


def test_the_extra_chunk_is_taken_out() -> None:
    assert edit(SAY, EXTRA, DONE, hide_usage=True) == SAY + DONE


@pytest.mark.parametrize(
    "kept",
    [
        event(chunk()),
        event(chunk(usage=None)),
        event({"usage": USAGE}),
        event(chunk("x", usage=USAGE)),
        event(chunk("usage", usage=None)),
        event({"choices": [], "error": {"usage": USAGE}}),
        event({"error": {"message": '"choices":[],"usage":{}'}}),
        event(chunk('{"choices":[],"usage":{"prompt_tokens":1}}')),
        b": ping\n\n",
        b'data: {"choices":[],"usage":{broken\n\n',
        b"\n\n",
    ],
)
def test_every_other_event_stays(kept: bytes) -> None:
    assert edit(SAY + kept + EXTRA + DONE, hide_usage=True) == SAY + kept + DONE


@pytest.mark.parametrize(
    "spelling", [b'{"choices": [ ], "usage" : {"prompt_tokens": 1}}', b'{"usage":{},"choices":[]}']
)
def test_the_extra_chunk_in_other_spellings(spelling: bytes) -> None:
    assert edit(b"data: " + spelling + b"\n\n" + DONE, hide_usage=True) == DONE
    assert edit(b"id: 3\ndata:" + spelling + b"\n\n" + DONE, hide_usage=True) == DONE


def test_a_whole_event_is_passed_on_at_once_and_a_part_when_it_is_whole() -> None:
    stream_edit = StreamEdit(hide_usage=True)
    assert stream_edit.feed(SAY) == SAY
    assert stream_edit.feed(SAY + SAY[:20]) == SAY
    assert stream_edit.feed(SAY[20:]) == SAY
    assert stream_edit.feed(EXTRA[:-1]) == b""
    assert stream_edit.feed(EXTRA[-1:] + DONE) == DONE


def test_an_extra_chunk_without_its_blank_line_is_taken_out_at_the_end() -> None:
    assert edit(SAY, EXTRA.rstrip(), hide_usage=True) == SAY
    assert edit(SAY, SAY[:-3], hide_usage=True) == SAY + SAY[:-3]


def test_from_an_event_that_is_too_long_on_everything_passes_unheld() -> None:
    stream_edit = StreamEdit(hide_usage=True, max_event_bytes=100)
    assert stream_edit.feed(b"x" * 100) == b""
    assert stream_edit.feed(b"x") == b"x" * 101
    assert stream_edit.feed(b"\n\n" + EXTRA) == b"\n\n" + EXTRA
    assert stream_edit.feed(b"data") == b"data"


def test_with_nothing_to_edit_nothing_is_held() -> None:
    assert StreamEdit().feed(b"data: {") == b"data: {"


# --- cached tokens -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("usage", "edited"),
    [
        (b'{"prompt_tokens":9}', b'{"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens":5}}'),
        (b'{"prompt_tokens_details": null, "x":1}', b'{"prompt_tokens_details": {"cached_tokens":5}, "x":1}'),
        (
            b'{ "prompt_tokens_details":{"a":1.50,"cached_tokens" : 832 ,"b":[]}}',
            b'{ "prompt_tokens_details":{"a":1.50,"cached_tokens" : 5 ,"b":[]}}',
        ),
        (b'{"prompt_tokens_details":{"cached_tokens":null}}', b'{"prompt_tokens_details":{"cached_tokens":5}}'),
        (b'{"prompt_tokens_details":{}}', b'{"prompt_tokens_details":{"cached_tokens":5}}'),
        (b"null", b"null"),
        (b"[1]", b"[1]"),
        (b'{"prompt_tokens_details":7}', b'{"prompt_tokens_details":7}'),
    ],
)
def test_cached_tokens_are_set_and_no_other_byte(usage: bytes, edited: bytes) -> None:
    body = b'{"id":"\\u00e9", "choices":[{"text":"\\"usage\\":{}"}],\n "usage": %b, "n":1e5}'
    assert set_cached_tokens(body % usage, 5) == body % edited
    stream = b"data: " + (body % usage).replace(b"\n", b"") + b"\n\n"
    assert edit(stream, DONE, cached_tokens=5) == b"data: " + (body % edited).replace(b"\n", b"") + b"\n\n" + DONE


def test_continuous_usage_is_set_in_every_chunk() -> None:
    told = edit(event(chunk("usage", usage=USAGE)), event(chunk("b", usage=USAGE)), EXTRA, DONE, cached_tokens=0)
    assert told.count(b'"prompt_tokens_details":{"cached_tokens":0}') == 3
    assert told.count(b'"content":"usage"') == 1


def test_both_edits_in_one_pass() -> None:
    told = edit(event(chunk("a", usage=USAGE)) + EXTRA + DONE, hide_usage=True, cached_tokens=4)
    details = {"prompt_tokens_details": {"cached_tokens": 4}}
    assert told == event(chunk("a", usage={**USAGE, **details})) + DONE


def test_the_usage_that_counts_is_the_outermost() -> None:
    inner = {"metrics": {"usage": USAGE}, "usage": USAGE}
    told = json.loads(set_cached_tokens(json.dumps(inner).encode(), 3))
    assert told == {"metrics": {"usage": USAGE}, "usage": {**USAGE, "prompt_tokens_details": {"cached_tokens": 3}}}


@pytest.mark.parametrize("body", [b"", b"no", b'{"error":{}}', b'{"usage":' + b"[" * 100_000, b"\xff"])
def test_an_answer_without_usage_stays(body: bytes) -> None:
    assert set_cached_tokens(body, 1) == body


def test_events_of_a_crlf_stream_keep_their_line_ends() -> None:
    said = event(chunk("a", usage=USAGE), end=b"\r\n")
    told = edit(said + event(chunk(usage=USAGE), end=b"\r\n"), hide_usage=True, cached_tokens=1)
    assert told == said.replace(
        b'"completion_tokens":8}', b'"completion_tokens":8,"prompt_tokens_details":{"cached_tokens":1}}'
    )


# --- properties ----------------------------------------------------------------------------------------------------

events = st.lists(
    st.sampled_from(
        [
            SAY,
            EXTRA,
            event(chunk("usage", usage=None)),
            event(chunk("a", usage=USAGE)),
            event({"error": {"message": "e"}}),
            b": ping\n\n",
            b"\n",
            b'event: x\ndata: {"choices":[],"usage":{}}\n\n',
            b'data: {"choices":[],\ndata: "usage":{}}\n\n',
            b'data: {broken "usage"\n\n',
            DONE,
        ]
    ),
    max_size=8,
)


@given(events, st.sampled_from([b"\n", b"\r\n", b"\r"]), st.booleans(), st.none() | st.just(7), st.data())
def test_any_cut_of_a_stream_gives_the_same_bytes(
    some: list[bytes], end: bytes, hide: bool, cached_tokens: int | None, data: st.DataObject
) -> None:
    stream = b"".join(some).replace(b"\n", end)
    whole = edit(stream, hide_usage=hide, cached_tokens=cached_tokens, max_event_bytes=180)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    reads = [stream[start:stop] for start, stop in pairwise([0, *cuts, len(stream)])]
    assert edit(*reads, hide_usage=hide, cached_tokens=cached_tokens, max_event_bytes=180) == whole
    single = [stream[at : at + 1] for at in range(len(stream))]
    assert edit(*single, hide_usage=hide, cached_tokens=cached_tokens, max_event_bytes=180) == whole


@given(events.map(lambda some: [item for item in some if b"[]" not in item]), st.sampled_from([b"\n", b"\r\n"]))
def test_a_stream_without_the_extra_chunk_passes_as_it_is(some: list[bytes], end: bytes) -> None:
    stream = b"".join(some).replace(b"\n", end)
    assert edit(stream, hide_usage=True) == stream


@given(st.lists(st.binary(max_size=40) | st.sampled_from([SAY, EXTRA, b"\r", b"\n", b'"usage"', b"data: {"])))
def test_editing_never_raises_and_adds_nothing_but_cached_tokens(reads: list[bytes]) -> None:
    assert len(edit(*reads, hide_usage=True)) <= len(b"".join(reads))
    edit(*reads, hide_usage=True, cached_tokens=1, max_event_bytes=64)


@given(st.dictionaries(st.text(), st.none() | st.integers() | st.text() | st.lists(st.text())), st.booleans())
def test_a_request_keeps_every_other_field(fields: dict[str, Any], spaced: bool) -> None:
    fields.pop("stream_options", None)
    body = json.dumps(fields, indent=1 if spaced else None).encode()
    assert json.loads(inject_usage(body)) == {**fields, "stream_options": {"include_usage": True}}
