import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.client import sse
from loadtest.client.sse import SseSplitter

STREAM = (
    b'data: {"a": 1}\n\n: ping\n\nevent: error\ndata:two\ndata: lines\n\ndata: \xe2\x82\xac\r\n\r\ndata: [DONE]\n\n'
)
EVENTS = [b'{"a": 1}', b"two\nlines", "€".encode(), b"[DONE]"]


def split(*reads: bytes) -> list[bytes]:
    splitter = SseSplitter()
    return [event for read in reads for event in splitter.feed(read)]


def test_only_data_comes_out() -> None:
    assert split(STREAM) == EVENTS


@given(cuts=st.lists(st.integers(0, len(STREAM)), max_size=12).map(sorted))
def test_reads_may_end_anywhere(cuts: list[int]) -> None:
    ends = [*cuts, len(STREAM)]
    assert split(*(STREAM[start:end] for start, end in zip([0, *cuts], ends, strict=True))) == EVENTS


def test_an_event_without_its_blank_line_is_not_given_out() -> None:
    assert split(b"data: 1\n\ndata: 2\n") == [b"1"]


def test_blank_lines_alone_are_no_events() -> None:
    assert split(b"\n\n\r\n\n: keep-alive\n\n") == []


def test_only_one_leading_space_is_dropped() -> None:
    assert split(b"data:  x \n\n") == [b" x "]


def test_an_endless_line_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "MAX_LINE_BYTES", 100)
    splitter = SseSplitter()
    splitter.feed(b"data: " + b"x" * 90)
    with pytest.raises(ValueError, match="more than 100 bytes"):
        splitter.feed(b"x" * 90)
