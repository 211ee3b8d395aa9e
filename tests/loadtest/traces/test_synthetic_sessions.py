from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest

from loadtest.traces.sessions import Session, all_turns
from loadtest.traces.statistics import Shape, describe
from loadtest.traces.synthetic_sessions import CLAUDE_CODE, MINISWE, SessionMix, session_trace
from loadtest.traces.workload import Workload


def coarse(mix: SessionMix) -> SessionMix:
    """The mix with blocks of 512 tokens: the same lengths, quicker to make."""
    agent = replace(mix.agent, block_tokens=512) if mix.agent else None
    return replace(mix, block_tokens=512, agent=agent)


def sessions(mix: SessionMix, count: int, *, seed: int = 4) -> list[Session]:
    return list(islice(session_trace(mix, seed=seed), count))


@pytest.fixture(scope="module")
def claude() -> list[Session]:
    return sessions(coarse(CLAUDE_CODE), 300)


@pytest.fixture(scope="module")
def miniswe() -> list[Session]:
    return sessions(MINISWE, 150)


def four(shape: Shape) -> tuple[float, ...]:
    return shape.p50, shape.p90, shape.p99, shape.mean


def pauses_s(found: Sequence[Session]) -> list[float]:
    return [turn.think_s for session in found for turn in session.turns if not turn.agents]


def test_statistics_are_those_of_claude_code_sessions(claude: list[Session]) -> None:
    found = describe(Workload(sessions=tuple(claude)).flattened())
    # Heavy tails over few sessions: the 99th percentile is that of a handful of them.
    assert four(found.isl_tokens)[:2] == pytest.approx((103_662, 233_633), rel=0.2)
    assert found.isl_tokens.p99 == pytest.approx(498_617, rel=0.35)
    assert found.isl_tokens.mean == pytest.approx(122_379, rel=0.15)
    assert four(found.osl_tokens)[:2] == pytest.approx((216, 898), rel=0.05)
    assert four(found.osl_tokens)[2:] == pytest.approx((3_687, 440), rel=0.1)
    assert found.reuse_ratio == pytest.approx(0.963, abs=0.015)
    assert np.percentile(pauses_s(claude), (50, 90)) == pytest.approx((10, 162), rel=0.2)
    assert np.mean([len(session.turns) for session in claude]) == pytest.approx(66, rel=0.15)


def test_statistics_are_those_of_miniswe_sessions(miniswe: list[Session]) -> None:
    found = describe(Workload(sessions=tuple(miniswe)).flattened())
    assert four(found.isl_tokens) == pytest.approx((3_902, 12_331, 39_464, 6_170), rel=0.2)
    assert four(found.osl_tokens) == pytest.approx((95, 177, 291, 110), rel=0.05)
    assert found.reuse_ratio == pytest.approx(0.935, abs=0.01)
    assert np.mean([len(session.turns) for session in miniswe]) == pytest.approx(20.1, rel=0.1)
    gaps_s = [MINISWE.service.of(turn) + turn.think_s for session in miniswe for turn in session.turns]
    assert np.percentile(gaps_s, (10, 50, 90)) == pytest.approx((0.71, 1.08, 2.03), rel=0.25)


def test_sessions_share_their_head_and_nothing_else(claude: list[Session]) -> None:
    head = set(range(CLAUDE_CODE.head_tokens // 512))
    owner: dict[int, str] = {}
    for session in claude[:50]:
        for turn in session.turns:
            assert set(turn.hash_ids[: len(head)]) == head
            assert all(owner.setdefault(block, session.id) == session.id for block in turn.hash_ids[len(head) :])


def test_a_block_always_follows_the_same_block(miniswe: list[Session]) -> None:
    before: dict[int, int] = {}
    for session in miniswe:
        for turn in all_turns(session):
            for parent, block in zip(turn.hash_ids, turn.hash_ids[1:], strict=False):
                assert before.setdefault(block, parent) == parent


def test_agents_have_a_head_of_their_own(claude: list[Session]) -> None:
    callers = [turn for session in claude for turn in session.turns if turn.agents]
    assert 0 < len(callers) < 0.01 * sum(len(session.turns) for session in claude)
    heads = {agent.turns[0].hash_ids[:17] for turn in callers for agent in turn.agents}
    assert len(heads) == 1
    assert not heads & {turn.hash_ids[:17] for turn in callers}


def test_early_answers_show_text_more_often_than_later_ones(claude: list[Session], miniswe: list[Session]) -> None:
    def share(number: int) -> float:
        shown = [one.turns[number].is_visible for one in claude if number < len(one.turns) - 1]
        return float(np.mean(shown))

    # Of the answers that call tools, as many as of those recorded; and all that make a user think.
    assert share(0) == pytest.approx(0.83 + 0.17 * 0.138, abs=0.05)
    assert share(1) == pytest.approx(0.75 + 0.25 * 0.138, abs=0.06)
    later = [turn.is_visible for one in claude for turn in one.turns[4:-1]]
    assert np.mean(later) == pytest.approx(0.5 + 0.5 * 0.138, abs=0.02)
    assert all(turn.is_visible for one in miniswe for turn in one.turns)


def test_an_answer_that_calls_sub_agents_may_show_nothing() -> None:
    agents = replace(MINISWE, agent_ratio=1.0, agent=MINISWE, text_ratios=(0.0,))
    (session,) = sessions(agents, 1)
    assert {turn.is_visible for turn in session.turns} == {False}


def test_sessions_begin_as_a_poisson_process() -> None:
    one_turn = replace(MINISWE, turns=((0.0, 1.0), (1.0, 1.0)))
    starts_s = [session.start_s for session in islice(session_trace(one_turn, seed=1, rate_rps=2.0), 1_000)]
    gaps_s = np.diff(starts_s)
    assert np.mean(gaps_s) == pytest.approx(0.5, rel=0.1)
    assert np.std(gaps_s) / np.mean(gaps_s) == pytest.approx(1.0, abs=0.1)


def test_the_seed_decides_everything_and_the_number_of_sessions_nothing() -> None:
    assert sessions(MINISWE, 5, seed=1) == sessions(MINISWE, 9, seed=1)[:5]
    assert sessions(MINISWE, 5, seed=1) != sessions(MINISWE, 5, seed=2)
