"""Calls to the router and their results, written down and read back."""

from pathlib import Path

import pytest

from gateway.core.events import Dispatched
from gateway.core.types import DecisionId, Endpoint, RequestFacts, RequestId
from gateway.telemetry.journal import JournalWriter
from gateway.wire.journal import JournalCall, JournalError, canonical, read_pairs
from tests.telemetry.telemetry_factories import a_decision

FACTS = RequestFacts(request_id=RequestId("r-1"), endpoint=Endpoint.CHAT, model="llama")
DISPATCHED = Dispatched(at_s=1.25, decision_id=DecisionId("d-1"))


def write_calls(path: Path) -> None:
    with JournalWriter(path) as journal:
        journal.call("submit", 1.0, FACTS, a_decision())
        journal.call("observe", 1.25, DISPATCHED, None)
        journal.call("abort", 1.5, None, None, details={"decision_id": "d-1", "excluded": ["decode-0"]})


def read_calls(path: Path) -> list[tuple[JournalCall, bytes]]:
    with path.open("rb") as lines:
        return list(read_pairs(lines))


def test_calls_come_back_in_order_with_their_canonical_results(tmp_path: Path) -> None:
    write_calls(tmp_path / "journal")
    assert read_calls(tmp_path / "journal") == [
        (JournalCall(name="submit", now_s=1.0, payload=FACTS), canonical(a_decision())),
        (JournalCall(name="observe", now_s=1.25, payload=DISPATCHED), b"null"),
        (
            JournalCall(name="abort", now_s=1.5, details={"decision_id": "d-1", "excluded": ["decode-0"]}),
            b"null",
        ),
    ]


def test_a_journal_never_continues_that_of_another_router(tmp_path: Path) -> None:
    write_calls(tmp_path / "journal")
    with pytest.raises(FileExistsError):
        JournalWriter(tmp_path / "journal")


def test_a_last_pair_cut_short_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    write_calls(path)
    whole = path.read_bytes()
    lines = whole.splitlines(keepends=True)
    for cut in range(len(b"".join(lines[:4])), len(whole)):
        path.write_bytes(whole[:cut])
        assert [call.name for call, _ in read_calls(path)] == ["submit", "observe"]


def test_a_line_that_is_no_call_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    path.write_bytes(b"{}\nnull\n")
    with pytest.raises(JournalError):
        read_calls(path)


def test_a_call_that_cannot_be_written_exactly_leaves_no_line(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with JournalWriter(path) as journal, pytest.raises(JournalError):
        journal.call("tick", float("nan"), None, None)
    assert path.read_bytes() == b""
