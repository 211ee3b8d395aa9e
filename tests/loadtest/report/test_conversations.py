from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.client.records import CANCELLED, Record
from loadtest.report.conversations import (
    ConversationRecord,
    conversations,
    read_conversations,
    summarise_conversations,
    tail,
    write_conversations,
)
from loadtest.traces.sessions import Session, Turn
from loadtest.traces.types import TraceRequest
from loadtest.traces.workload import Workload


def turn(think_s: float = 0.0, *, is_visible: bool = True, agents: tuple[Session, ...] = ()) -> Turn:
    return Turn(input_tokens=100, output_tokens=11, think_s=think_s, is_visible=is_visible, agents=agents)


TOOLS = Session(id="a", start_s=10.0, turns=(turn(2.0, is_visible=False), turn(3.0, is_visible=False), turn()))
"""Two calls of tools, which take 2 and 3 s, and then an answer."""


def answered(index: int, at_s: float, **change: object) -> Record:
    """Answered within 2 s, the first token after one."""
    good = Record(
        request_id=f"{index}", index=index, scheduled_s=at_s, status=200, ok=True, input_tokens=100, output_tokens=11,
        ttft_s=1.0, tpot_s=0.1, e2e_s=2.0, path="local", worker="d0",
    )  # fmt: skip
    return msgspec.structs.replace(good, **change)


def failed(index: int, at_s: float, error: str = "http_503: busy", **change: object) -> Record:
    unknown = {"input_tokens": None, "output_tokens": None, "ttft_s": None, "tpot_s": None}
    return answered(index, at_s, **{**unknown, "ok": False, "error": error, "path": None, "worker": None, **change})


def only(session: Session, *records: Record) -> ConversationRecord:
    (found,) = conversations(Workload(sessions=(session,)).flattened(), records)
    return found


def test_a_conversation_with_two_calls_of_tools_by_hand() -> None:
    found = only(
        TOOLS,
        answered(0, 10.0, path="remote", worker="d1"),
        answered(1, 14.0, worker="d1"),  # answered at 12, and 2 s of a tool
        answered(2, 19.0, worker="d0", ttft_s=0.5, tpot_s=0.04),  # answered at 16, and 3 s of a tool
    )
    assert found == ConversationRecord(
        conversation="a",
        turns_done=3,
        turns_expected=3,
        ok=True,
        started_s=10.0,
        ttfet_s=9.5,  # from 10 to 19.5
        ttfet_think_s=5.0,
        e2e_s=11.0,
        think_s=5.0,
        last_tpot_s=0.04,
        input_tokens=300,
        output_tokens=33,
        transfers=1,
        workers=("d1", "d0"),
        moves=1,
    )


def test_the_first_answer_with_text_counts_and_no_later_one() -> None:
    session = replace(TOOLS, turns=(turn(2.0, is_visible=False), turn(3.0), turn()))
    assert only(session, answered(0, 10.0), answered(1, 14.0), answered(2, 19.0)).ttfet_s == 5.0
    alone = only(replace(TOOLS, turns=(turn(),)), answered(0, 10.0))
    assert (alone.ttfet_s, alone.ttfet_think_s) == (1.0, 0.0)


def test_sub_agents_belong_to_the_conversation_and_show_nothing() -> None:
    agents = tuple(Session(id=f"a/{n}", start_s=0.0, turns=(turn(1.0), turn())) for n in (1, 2))
    session = Session(id="a", start_s=0.0, turns=(turn(4.0, is_visible=False, agents=agents), turn()))
    requests = Workload(sessions=(session,)).flattened()
    by_place = {(one.session, one.turn): one.index for one in requests}
    # Both begin at 2; the first turns end at 4, the second ones begin at 5. The caller goes on 4 s after 9.
    at_s = {("a", 0): 0.0, ("a/1", 0): 2.0, ("a/2", 0): 2.0, ("a/1", 1): 5.0, ("a/2", 1): 5.0, ("a", 1): 13.0}
    workers = {("a", 0): "d0", ("a/1", 0): "d1", ("a/2", 0): "d0", ("a/1", 1): "d1", ("a/2", 1): "d2", ("a", 1): "d0"}
    records = [
        answered(by_place[place], at_s[place], worker=worker, path="remote" if place[1] == 0 else "local")
        for place, worker in workers.items()
    ]
    late = by_place["a/2", 1]
    records = [msgspec.structs.replace(one, e2e_s=4.0) if one.index == late else one for one in records]
    (found,) = conversations(requests, records)
    assert (found.conversation, found.turns_done, found.turns_expected) == ("a", 6, 6)
    assert (found.ttfet_s, found.ttfet_think_s) == (14.0, 5.0)
    assert found.think_s == 1.0 + 4.0  # between the agents' turns, and the caller's own
    assert (found.workers, found.transfers) == (("d0", "d1", "d2"), 3)
    assert found.moves == 1  # a/2 went from d0 to d2; a and a/1 stayed


@pytest.mark.parametrize("error", ["http_503: busy", CANCELLED])
def test_what_follows_a_failure_is_no_effective_token(error: str) -> None:
    found = only(TOOLS, answered(0, 10.0), failed(1, 14.0, error, e2e_s=0.1), answered(2, 17.1))
    assert (found.ttfet_s, found.ttfet_think_s, found.ok, found.turns_done) == (None, None, False, 2)
    assert found.e2e_s == pytest.approx(9.1)
    assert (found.input_tokens, found.workers, found.moves) == (200, ("d0",), 0)


def test_a_failure_after_the_first_text_takes_nothing_back() -> None:
    session = replace(TOOLS, turns=(turn(2.0), turn()))
    found = only(session, answered(0, 10.0), failed(1, 14.0))
    assert (found.ttfet_s, found.ok, found.last_tpot_s) == (1.0, False, None)


def test_a_token_that_came_before_its_answer_broke_off_was_seen() -> None:
    found = only(replace(TOOLS, turns=(turn(),)), failed(0, 10.0, "truncated", ttft_s=0.7))
    assert (found.ttfet_s, found.ok) == (0.7, False)


def test_an_answer_that_outlasts_the_wait_leaves_no_pause() -> None:
    # In open loop a turn may be sent while the one before is still being answered.
    found = only(TOOLS, answered(0, 10.0), answered(1, 11.0, e2e_s=20.0), answered(2, 15.0))
    assert (found.ttfet_s, found.ttfet_think_s, found.think_s) == (6.0, 0.0, 0.0)


def test_a_run_that_stops_leaves_a_conversation_unfinished() -> None:
    found = only(TOOLS, answered(0, 10.0), failed(1, 14.0, CANCELLED, e2e_s=None))
    assert (found.turns_done, found.turns_expected, found.ok) == (1, 3, False)
    assert (found.ttfet_s, found.e2e_s, found.think_s, found.last_tpot_s) == (None, 2.0, 0.0, None)


def test_conversations_come_in_the_order_of_their_beginning() -> None:
    other = replace(TOOLS, id="b", start_s=3.0)
    requests = Workload(sessions=(TOOLS, other)).flattened()
    first = {one.session: one.index for one in requests if one.turn == 0}
    found = conversations(requests, [answered(first["a"], 10.0), answered(first["b"], 3.0)])
    assert [one.conversation for one in found] == ["b", "a"]
    assert [one.conversation for one in conversations(requests, [answered(first["a"], 10.0)])] == ["a"]


def test_requests_without_a_session_are_left_out() -> None:
    alone = TraceRequest(index=0, arrival_s=0.0, input_tokens=1, output_tokens=1)
    assert conversations([alone], [answered(0, 0.0)]) == []


def test_turns_that_the_trace_does_not_number_follow_each_other_in_its_order() -> None:
    requests = [TraceRequest(index=n, arrival_s=n, input_tokens=1, output_tokens=1, session="c") for n in range(3)]
    records = [answered(n, 5.0 * n, worker=worker, tpot_s=n / 10) for n, worker in enumerate(("x", "y", "y"))]
    (found,) = conversations(requests, reversed(records))
    assert (found.moves, found.last_tpot_s, found.ttfet_s) == (1, 0.2, 1.0)


@pytest.mark.parametrize(("indices", "problem"), [((0, 0), "recorded twice"), ((7,), "not of this trace")])
def test_records_must_be_of_the_trace(indices: tuple[int, ...], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        conversations(Workload(sessions=(TOOLS,)).flattened(), [answered(index, 0.0) for index in indices])


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 9)), min_size=1, max_size=6).map(sorted))
def test_waits_and_work_make_up_the_whole(spans: list[tuple[int, int]]) -> None:
    session = replace(TOOLS, turns=tuple(turn() for _ in spans))
    found = only(session, *(answered(n, at_s, e2e_s=lasted_s) for n, (at_s, lasted_s) in enumerate(spans)))
    busy = {second for at_s, lasted_s in spans for second in range(at_s, at_s + lasted_s)}
    assert found.e2e_s == max(busy) + 1 - min(busy)
    assert found.think_s == found.e2e_s - len(busy)


def conversation(number: int, **change: object) -> ConversationRecord:
    good = ConversationRecord(
        conversation=f"c{number}", turns_done=3, turns_expected=3, ok=True, started_s=number, ttfet_s=1.0 + number,
        ttfet_think_s=0.5 + number, e2e_s=10.0, think_s=5.0, last_tpot_s=0.02, input_tokens=1, output_tokens=1,
        transfers=1, workers=("d0",), moves=0,
    )  # fmt: skip
    return msgspec.structs.replace(good, **change)


def test_a_summary_is_of_all_that_can_be_said() -> None:
    found = [conversation(n) for n in range(4)]
    found += [conversation(4, ok=False, transfers=3, moves=2), conversation(5, ok=False, ttfet_s=None, transfers=0)]
    summary = summarise_conversations(found, asked=8)
    assert (summary.asked, summary.finished, summary.finished_ratio) == (8, 4, 0.5)
    assert summary.ttfet_s is not None
    assert (summary.ttfet_s.count, summary.ttfet_s.mean, summary.ttfet_s.p50) == (5, 3.0, 3.0)
    assert (summary.ttfet_s.p95, summary.ttfet_s.p99) == pytest.approx((4.8, 4.96))
    assert summary.ttfet_work_s is not None
    assert (summary.ttfet_work_s.count, summary.ttfet_work_s.p95) == (5, 0.5)
    assert summary.last_tpot_s is not None
    assert (summary.last_tpot_s.count, summary.last_tpot_s.p95) == (4, 0.02)
    assert summary.transfers == {0: 1, 1: 4, 3: 1}
    assert summary.transfers_mean == pytest.approx(7 / 6)
    assert summary.moves_mean == pytest.approx(1 / 3)


def test_without_conversations_there_is_nothing_to_say() -> None:
    summary = summarise_conversations([])
    assert (summary.asked, summary.finished_ratio, summary.ttfet_s, summary.transfers_mean) == (0, None, None, None)
    assert summary.transfers == {}
    assert tail([None]) is None


def test_conversations_are_kept_in_files(tmp_path: Path) -> None:
    found = [conversation(1), conversation(2, ttfet_s=None, workers=())]
    write_conversations(tmp_path / "conversations.jsonl", found)
    assert read_conversations(tmp_path / "conversations.jsonl") == found
