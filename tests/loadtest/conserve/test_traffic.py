from itertools import pairwise

import pytest

from loadtest.conserve.traffic import SOURCES, Talk, missing


def talk(workload: str = "claude-code", rate_rps: float = 2.0, seed: int = 1) -> Talk:
    return Talk(workload=workload, sessions=30, rate_rps=rate_rps, seed=seed)


@pytest.mark.parametrize("workload", list(SOURCES))
def test_equal_talks_are_equal_conversations_and_seeds_differ(workload: str) -> None:
    assert talk(workload).load() == talk(workload).load()
    assert talk(workload).load() != talk(workload, seed=2).load()
    assert len(talk(workload).load().sessions) == 30


def test_twice_the_rate_is_the_same_in_half_the_time() -> None:
    slow, fast = talk().load().sessions, talk(rate_rps=4.0).load().sessions
    assert [one.turns for one in slow] == [one.turns for one in fast]
    assert [one.start_s for one in slow] == pytest.approx([2 * one.start_s for one in fast])


def test_long_conversations_and_pauses_are_cut() -> None:
    source = SOURCES["claude-code"]
    sessions = talk().load().sessions
    assert source.max_turns is not None
    assert source.max_pause_s is not None
    assert max(len(one.turns) for one in sessions) <= source.max_turns
    assert max(turn.think_s for one in sessions for turn in one.turns) == source.max_pause_s
    assert talk().turns_mean() == sum(len(one.turns) for one in sessions) / 30


def test_conversations_come_in_order_and_stand_ins_are_told() -> None:
    starts = [one.start_s for one in talk().load().sessions]
    assert all(before <= after for before, after in pairwise(starts))
    assert missing("miniswe", None) == ["traces/lmcache_agent_miniswe.jsonl.gz"]
