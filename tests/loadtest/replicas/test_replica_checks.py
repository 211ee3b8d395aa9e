"""The checks of a run: all hold where every promise was kept, and each can miss."""

from typing import Any

import pytest

from loadtest.replicas.checks import checks, notes
from loadtest.replicas.records import Played, Run, Tried
from tests.loadtest.replicas.replicas_lab import PLAN, good_run, tried

STEADY = "later turns on their pinned worker"
LOST = "requests lost beyond those open on gateway-1 as it was killed"
UNFINISHED = "conversations on decode-3 that did not finish after it was killed"
APART = "of those, such whose later turns went to several new homes"


def missed(run: Run) -> list[str]:
    return [check.what for check in checks(run, PLAN) if not check.holds]


def failed(session: str, sent_s: float, ended_s: float, **changes: Any) -> Tried:
    return tried(session, sent_s, ended_s=ended_s, error="disconnected: gone", **changes)


def test_all_hold_where_every_promise_was_kept() -> None:
    assert missed(good_run()) == []


def test_a_line_says_what_was_measured_and_what_was_required() -> None:
    lines = [str(check) for check in checks(good_run(), PLAN)]
    assert lines[1] == "ok   later turns on their pinned worker: 100.00%, 1 of 1 (at least 99.5%)"
    assert str(checks(good_run(peak_sessions=1), PLAN)[0]) == "MISS sessions at once: 1 (at least 2)"


@pytest.mark.parametrize(
    ("sent_s", "what"),
    [
        (30.0, STEADY),
        (130.0, "later turns on it after a replica was killed"),
        (240.0, "later turns on it once Redis was back, empty"),
        (330.0, "later turns of all others on it after that"),
    ],
)
def test_a_turn_away_from_its_home_misses(sent_s: float, what: str) -> None:
    assert missed(good_run(tried("a", sent_s, worker="decode-2"))) == [what]


@pytest.mark.parametrize("sent_s", [5.0, 205.0, 221.0])
def test_while_it_all_begins_and_redis_is_away_a_turn_may_go_elsewhere(sent_s: float) -> None:
    assert missed(good_run(tried("a", sent_s, worker="decode-2"))) == []


def test_two_hundred_turns_at_home_outweigh_one_elsewhere() -> None:
    at_home = [tried("a", 40.0 + number / 10) for number in range(250)]
    assert missed(good_run(tried("a", 30.0, worker="decode-2"), *at_home)) == []


@pytest.mark.parametrize(
    ("one", "what"),
    [
        (failed("a", 50.0, 51.0), "failed requests before any fault"),
        (failed("a", 99.0, 100.2, replica="gateway-0"), LOST),
        (failed("a", 101.0, 102.0, replica="gateway-1"), LOST),
        (failed("a", 205.0, 206.0), "failed requests while Redis hung and after"),
        (failed("a", 250.0, 251.0), "failed requests while Redis hung and after"),
    ],
)
def test_a_request_that_fails_for_no_reason_misses(one: Tried, what: str) -> None:
    assert missed(good_run(one)) == [what]


def test_what_was_open_on_the_killed_replica_may_be_lost() -> None:
    one = failed("a", 99.9, 100.2, replica="gateway-1")
    assert missed(good_run(one)) == []
    (line,) = [str(check) for check in checks(good_run(one), PLAN) if check.what == LOST]
    assert "0; 1 were open there, 1 of them lost" in line


def test_a_stream_that_the_decode_worker_took_with_it_is_the_faults() -> None:
    cut = failed("b", 299.9, 300.2, worker="decode-3", pinned_to="decode-3")
    assert missed(good_run(cut)) == []


def test_a_conversation_of_the_decode_worker_that_gives_up_misses() -> None:
    played = (
        Played(session="a", ended_s=350.0, turns=5, is_whole=True),
        Played(session="b", ended_s=350.0, turns=3, is_whole=False),
    )
    assert missed(good_run(played=played)) == [UNFINISHED, "sessions that did not finish"]


def test_a_kill_that_hit_nobody_shows_nothing() -> None:
    only_a = tuple(one for one in good_run().tried if one.session == "a")
    assert missed(good_run(tried=only_a)) == [UNFINISHED]


def test_two_new_homes_of_one_conversation_miss() -> None:
    third = tried("b", 345.0, worker="decode-2", pinned_to="decode-1")
    assert APART in missed(good_run(third))


def test_one_that_had_ended_before_is_not_the_workers() -> None:
    played = (
        Played(session="a", ended_s=350.0, turns=5, is_whole=True),
        Played(session="b", ended_s=350.0, turns=5, is_whole=True),
        Played(session="c", ended_s=299.0, turns=5, is_whole=True),
    )
    run = good_run(tried("c", 298.0, worker="decode-3", pinned_to="decode-3"), played=played)
    (line,) = [str(check) for check in checks(run, PLAN) if check.what == UNFINISHED]
    assert "0 of 1;" in line


def test_notes_tell_of_every_stretch() -> None:
    lines = notes(good_run(failed("a", 205.0, 206.0)))
    assert [line.partition(":")[0] for line in lines] == [
        "steady",
        "a replica killed",
        "Redis away",
        "Redis back",
        "a decode worker killed",
    ]
    assert lines[2].endswith("1 of 1 later turns at home; 1 x disconnected: gone")
