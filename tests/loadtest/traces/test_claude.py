import json
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from loadtest.traces.claude import SHARED_IDS, ClaudeOptions, claude_sessions
from loadtest.traces.sessions import Session, all_turns
from loadtest.traces.statistics import describe
from loadtest.traces.types import TraceError
from loadtest.traces.workload import Workload

CLAUDE = Path(__file__).parents[4] / "shared" / "data" / "traces" / "claude_code_sessions.jsonl.gz"


def request(t: float, runs: list[int], **more: Any) -> dict[str, Any]:
    blocks = sum(runs[1::2])
    return {"t": t, "type": "n", "model": "m", "in": 64 * blocks + 10, "out": 20, "api_time": 2.0, "h": runs, **more}


def called(ended_t: float, lasted_s: float | None, *requests: dict[str, Any], **more: Any) -> dict[str, Any]:
    duration_ms = None if lasted_s is None else lasted_s * 1_000
    return {"t": ended_t, "type": "subagent", "duration_ms": duration_ms, "requests": requests, **more}


def line(*requests: dict[str, Any], **more: Any) -> str:
    return json.dumps(
        {"id": "trace", "models": ["m"], "block_size": 64, "tool_tokens": 100, "system_tokens": 60,
         "requests": requests, **more}
    )  # fmt: skip


@pytest.fixture
def sessions(tmp_path: Path) -> Callable[..., list[Session]]:
    def read(*lines: str, **options: Any) -> list[Session]:
        path = tmp_path / "claude.jsonl"
        path.write_text("\n".join(lines))
        return list(claude_sessions(str(path), ClaudeOptions(**options), map(float, count())))

    return read


Sessions = Callable[..., list[Session]]


def test_a_request_becomes_a_turn(sessions: Sessions) -> None:
    (session,) = sessions(line(request(0, [1, 2]), request(9, [1, 3], think_time=6.5)))
    first, second = session.turns
    assert (session.id, session.start_s, session.block_tokens) == ("trace", 0.0, 64)
    assert (first.input_tokens, first.output_tokens, first.service_s, first.think_s) == (138, 20, 2.0, 6.5)
    assert second.hash_ids[:2] == first.hash_ids
    assert len(second.hash_ids) == 3
    assert second.think_s == 0.0


def test_an_absent_think_time_follows_from_the_times(sessions: Sessions) -> None:
    (session,) = sessions(line(request(0, [1, 2]), request(9, [1, 3], api_time=None), request(9.5, [1, 3])))
    assert [turn.think_s for turn in session.turns] == [7.0, 0.5, 0.0]
    assert session.turns[1].service_s is None


def test_ids_of_one_session_mean_nothing_in_another(sessions: Sessions) -> None:
    one, other = sessions(line(request(0, [1, 4, 9, 2])), line(request(0, [1, 4])))
    assert not set(one.turns[0].hash_ids) & set(other.turns[0].hash_ids)
    assert min(one.turns[0].hash_ids) >= SHARED_IDS


def test_a_shared_head_reaches_as_far_as_tools_and_system_prompt(sessions: Sessions) -> None:
    lines = [line(request(0, [1, 4]), request(5, [1, 2, 7, 2])), line(request(0, [3, 4]))]
    one, other = sessions(*lines, shared_head=True)
    assert one.turns[0].hash_ids[:2] == other.turns[0].hash_ids[:2]  # 160 tokens are two whole blocks
    assert one.turns[0].hash_ids[2] != other.turns[0].hash_ids[2]
    assert one.turns[1].hash_ids[:2] == one.turns[0].hash_ids[:2]
    foreign = sessions(lines[0], line(request(0, [3, 4], model="n")), shared_head=True)
    assert foreign[0].turns[0].hash_ids[0] != foreign[1].turns[0].hash_ids[0]


def test_agents_begin_when_their_end_and_duration_say(sessions: Sessions) -> None:
    inner = (request(0, [50, 2]), request(10, [50, 3], think_time=8.0))
    caller = (request(0, [1, 2]), called(40, 37.5, *inner), called(50, None, *inner), request(53, [1, 3]))
    (session,) = sessions(line(*caller))
    turn = session.turns[0]
    first, second = turn.agents
    assert turn.think_s == 3.0  # after the last agent's end
    assert (first.id, first.start_s, second.start_s) == ("trace/1", 0.5, 36.0)  # both counted from the answer at 2
    assert [one.think_s for one in first.turns] == [8.0, 25.5]  # the second: until it reports
    assert second.turns[-1].think_s == 0.0
    assert first.turns[0].hash_ids == second.turns[0].hash_ids


def test_agents_can_be_left_out(sessions: Sessions) -> None:
    caller = (request(0, [1, 2]), called(40, 37.5, request(0, [50, 2])), request(53, [1, 3], think_time=51.0))
    (session,) = sessions(line(*caller), agents=False)
    assert len(list(all_turns(session))) == 2
    assert session.turns[0].think_s == 51.0


@pytest.mark.parametrize(
    ("block", "scale", "kept", "tokens"), [(128, 1.0, 5, 714), (64, 0.5, 5, 357), (64, 0.3, 3, 214)]
)
def test_joined_blocks_and_scaled_contexts_keep_what_is_shared(
    sessions: Sessions, block: int, scale: float, kept: int, tokens: int
) -> None:
    (session,) = sessions(line(request(0, [1, 11]), request(5, [1, 6, 20, 5])), block_tokens=block, context_scale=scale)
    one, other = session.turns
    assert one.input_tokens == tokens
    assert len(one.hash_ids) == len(other.hash_ids) == kept
    shared = sum(a == b for a, b in zip(one.hash_ids, other.hash_ids, strict=True))
    assert shared == int(6 * 64 * scale / block)


@pytest.mark.parametrize(
    ("answer", "is_visible"),
    [
        ({"stop": "tool_use", "output_types": ["thinking", "tool_use"]}, False),
        ({"stop": "tool_use", "output_types": ["thinking", "text", "tool_use"]}, True),
        ({"stop": "end_turn", "output_types": ["text"]}, True),
        ({"stop": "end_turn", "output_types": []}, False),
        # What a streamed answer holds is not recorded, whatever is written there.
        ({"type": "s", "stop": "tool_use", "output_types": ["text"]}, False),
        ({"type": "s", "stop": "end_turn", "output_types": ["text"]}, True),
        ({"stop": "tool_use"}, False),
        ({"stop": "end_turn"}, True),
    ],
)
def test_an_answer_shows_text_where_the_file_says_so(
    sessions: Sessions, answer: dict[str, Any], is_visible: bool
) -> None:
    (session,) = sessions(line(request(0, [1, 2], **answer), request(9, [1, 3])))
    assert session.turns[0].is_visible is is_visible


@pytest.mark.parametrize(
    ("follows", "is_visible"),
    [(["text"], True), (["tool_result"], False), (["text", "thinking", "tool_result", "tool_use"], False)],
)
def test_of_an_answer_that_was_not_recorded_what_follows_tells(
    sessions: Sessions, follows: list[str], is_visible: bool
) -> None:
    unknown = request(0, [1, 2], type="s", stop="", output_types=[])
    (session,) = sessions(line(unknown, request(9, [1, 3], input_types=follows)))
    assert session.turns[0].is_visible is is_visible


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", r"claude\.jsonl:1: "),
        (line(request(0, [1, 2]), block_size=16), r"claude\.jsonl:1: blocks of 16"),
        (line(request(0, [1, 2, 3])), r"claude\.jsonl:1: "),
    ],
)
def test_a_bad_line_is_named(sessions: Sessions, text: str, complaint: str) -> None:
    with pytest.raises(TraceError, match=complaint):
        sessions(text)


def test_a_block_must_be_whole_blocks_of_the_file(sessions: Sessions) -> None:
    with pytest.raises(TraceError, match="multiple of 64"):
        sessions(line(request(0, [1, 2])), block_tokens=100)


@pytest.mark.shared_data
@pytest.mark.skipif(not CLAUDE.exists(), reason=f"{CLAUDE.name} is not here")
def test_the_real_sessions_have_their_documented_statistics() -> None:
    found = tuple(claude_sessions(str(CLAUDE), ClaudeOptions(block_tokens=512), map(float, count())))
    made = describe(Workload(sessions=found).flattened())
    assert (len(found), made.requests) == (355, 24_015)  # every second of the 710 that the statistics are of
    isl, osl = made.isl_tokens, made.osl_tokens
    assert (isl.p50, isl.p90, isl.p99, isl.mean) == pytest.approx((103_662, 233_633, 498_617, 122_379), rel=0.1)
    assert (osl.p50, osl.p90, osl.p99, osl.mean) == pytest.approx((216, 898, 3_687, 440), rel=0.05)
    assert made.reuse_ratio == pytest.approx(0.963, abs=0.005)


@pytest.mark.shared_data
@pytest.mark.skipif(not CLAUDE.exists(), reason=f"{CLAUDE.name} is not here")
def test_half_of_the_real_answers_show_text_and_two_thirds_of_the_first_ones() -> None:
    options = ClaudeOptions(block_tokens=65_536)  # blocks do not matter here
    found = Workload(sessions=tuple(claude_sessions(str(CLAUDE), options, map(float, count())))).flattened()
    own, agents = ([one for one in found if (one.root is None) is is_own] for is_own in (True, False))
    assert (len(own), sum(one.is_visible for one in own)) == (23_491, 12_559)
    assert (len(agents), sum(one.is_visible for one in agents)) == (524, 0)
    assert sum(one.is_visible for one in own if one.turn == 0) == 237  # of 355
    assert sum(one.is_last for one in own) == 355
