import json
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadtest.traces.chats import SWE_AGENT, TAUBENCH, ChatFormat, ChatPauses, chat_sessions
from loadtest.traces.sessions import Session
from loadtest.traces.statistics import describe
from loadtest.traces.types import TraceError
from loadtest.traces.workload import Workload

DATA = Path(__file__).parents[4] / "shared" / "data" / "traces"
AIRLINE = DATA / "taubench_gpt4o_airline_sessions.jsonl.gz"
SWE = DATA / "swe_agent_trajectories.jsonl.gz"

FOUR = ChatFormat(prompt_chars_per_token=4.0, output_chars_per_token=2.0)
SYSTEM = {"role": "system", "content": "be brief " * 40}  # 360 characters: five blocks of 64


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def answer(text: str | None, *calls: tuple[str, str]) -> dict[str, Any]:
    tools = [{"function": {"name": name, "arguments": arguments}} for name, arguments in calls]
    return {"role": "assistant", "content": text, "tool_calls": tools or None}


def tool(text: str) -> dict[str, Any]:
    return {"role": "tool", "content": text, "name": "x"}


def line(*messages: dict[str, Any]) -> str:
    return json.dumps({"messages": messages})


@pytest.fixture
def sessions(tmp_path: Path) -> Callable[..., list[Session]]:
    def read(*lines: str, pauses: ChatPauses | None = None, seed: int = 1) -> list[Session]:
        path = tmp_path / "chats.jsonl"
        path.write_text("\n".join(lines))
        return list(chat_sessions(str(path), FOUR, pauses or ChatPauses(), 16, map(float, count()), seed=seed))

    return read


Sessions = Callable[..., list[Session]]


def test_every_answer_is_a_turn_whose_prompt_is_all_before_it(sessions: Sessions) -> None:
    (session,) = sessions(
        line(SYSTEM, user("u" * 40), answer(None, ("find", "abcdef")), tool("t" * 100), answer("bye"))
    )
    first, second = session.turns
    assert (first.input_tokens, first.output_tokens) == (100, 5)
    assert (second.input_tokens, second.output_tokens) == (-(-(400 + 10 + 100) // 4), 2)
    assert len(first.hash_ids) == 6
    assert second.hash_ids[:6] == first.hash_ids
    assert second.think_s == 0.0


def test_equal_text_is_equal_blocks_across_sessions(sessions: Sessions) -> None:
    one, other = sessions(line(SYSTEM, user("x" * 80), answer("a")), line(SYSTEM, user("y" * 80), answer("b")))
    shared = [a for a, b in zip(one.turns[0].hash_ids, other.turns[0].hash_ids, strict=True) if a == b]
    assert len(shared) == 5


def test_equal_text_after_another_start_is_another_block(sessions: Sessions) -> None:
    one, other = sessions(line(user("a" * 64 + "z" * 64), answer("a")), line(user("b" * 64 + "z" * 64), answer("b")))
    assert not set(one.turns[0].hash_ids) & set(other.turns[0].hash_ids)


def test_a_call_of_tools_shows_text_only_where_it_has_content(sessions: Sessions) -> None:
    call = ("find", "abc")
    said = [answer(None, call), answer(" ", call), answer("I look it up.", call), answer("Found.")]
    (session,) = sessions(line(user("u" * 40), *(one for each in said for one in (each, tool("t")))))
    assert [turn.is_visible for turn in session.turns] == [False, False, True, True]


def test_users_take_their_time_and_tools_theirs(sessions: Sessions) -> None:
    chat = line(user("u"), *[answer("a"), user("u"), answer("b"), tool("t")] * 400, answer("end"))
    (session,) = sessions(chat, pauses=ChatPauses(tool_s=2.0, user_s=30.0))
    thinks_s = [turn.think_s for turn in session.turns[:-1]]
    assert np.mean(thinks_s[::2]) == pytest.approx(30.0, rel=0.15)
    assert np.mean(thinks_s[1::2]) == pytest.approx(2.0, rel=0.15)


def test_the_seed_decides_the_pauses(sessions: Sessions) -> None:
    chat = line(user("u"), answer("a"), user("v"), answer("b"))
    assert sessions(chat, seed=1) == sessions(chat, seed=1)
    assert sessions(chat, seed=1) != sessions(chat, seed=2)


@pytest.mark.parametrize(("text", "complaint"), [("{", ":1: "), (line(user("u")), ":1: no message of an assistant")])
def test_a_bad_line_is_named(sessions: Sessions, text: str, complaint: str) -> None:
    with pytest.raises(TraceError, match=rf"chats\.jsonl{complaint}"):
        sessions(text)


@pytest.mark.shared_data
@pytest.mark.parametrize(
    ("path", "source", "calls", "isl", "osl", "reuse"),
    [
        pytest.param(AIRLINE, TAUBENCH, 2_454, (2_385, 5_102, 7_805, 2_851), (60, 150, 299, 79), 0.957, id="taubench"),
        pytest.param(SWE, SWE_AGENT, 230, (4_563, 9_593, 13_489, 4_916), (77, 153, 511, 91), 0.879, id="swe"),
    ],
)
def test_the_real_conversations_have_their_documented_statistics(
    path: Path, source: ChatFormat, calls: int, isl: tuple[float, ...], osl: tuple[float, ...], reuse: float
) -> None:
    if not path.exists():
        pytest.skip(f"{path.name} is not here")
    workload = Workload(sessions=tuple(chat_sessions(str(path), source, ChatPauses(), 16, map(float, count()), seed=1)))
    found = describe(workload.flattened())
    assert found.requests == calls
    # Characters are not tokens: the middle fits, the tails by a fifth or so.
    assert (found.isl_tokens.p50, found.isl_tokens.p90) == pytest.approx(isl[:2], rel=0.15)
    assert (found.osl_tokens.p50, found.osl_tokens.p90) == pytest.approx(osl[:2], rel=0.15)
    assert (found.isl_tokens.mean, found.osl_tokens.mean) == pytest.approx((isl[3], osl[3]), rel=0.02)
    assert found.reuse_ratio == pytest.approx(reuse, abs=0.02)


@pytest.mark.shared_data
@pytest.mark.parametrize(
    ("path", "source", "visible"),
    [pytest.param(AIRLINE, TAUBENCH, 1_380, id="taubench"), pytest.param(SWE, SWE_AGENT, 230, id="swe")],
)
def test_of_the_real_answers_those_with_content_show_text(path: Path, source: ChatFormat, visible: int) -> None:
    if not path.exists():
        pytest.skip(f"{path.name} is not here")
    found = chat_sessions(str(path), source, ChatPauses(), 16, map(float, count()), seed=1)
    assert sum(turn.is_visible for session in found for turn in session.turns) == visible
