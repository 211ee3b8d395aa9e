import json
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from loadtest.traces.lmcache import RECORDED_TPOT_S, SIMULATOR_GREETING, lmcache_sessions
from loadtest.traces.sessions import Session
from loadtest.traces.statistics import describe
from loadtest.traces.types import TraceError
from loadtest.traces.workload import Workload

DATA = Path(__file__).parents[4] / "shared" / "data" / "traces"
MINISWE = DATA / "lmcache_agent_miniswe.jsonl.gz"
TAUBENCH = DATA / "lmcache_agent_taubench.jsonl.gz"

Call = tuple[float, int, str, int, int]
"""Time, kept characters, added text, prompt tokens, output tokens."""


def line(*calls: Call) -> str:
    names = ("t", "keep", "add", "in_tok", "out_tok")
    return json.dumps({"session": "s", "calls": [dict(zip(names, call, strict=True)) for call in calls]})


@pytest.fixture
def sessions(tmp_path: Path) -> Callable[..., list[Session]]:
    def read(*lines: str) -> list[Session]:
        path = tmp_path / "calls.jsonl"
        path.write_text("\n".join(lines))
        return list(lmcache_sessions(str(path), 16, map(float, count())))

    return read


Sessions = Callable[..., list[Session]]


def test_a_prompt_that_goes_on_keeps_its_whole_blocks(sessions: Sessions) -> None:
    (session,) = sessions(line((0, 0, "a" * 160, 40, 10), (3, 160, "b" * 80, 60, 20)))
    first, second = session.turns
    assert (first.input_tokens, first.output_tokens, len(first.hash_ids)) == (40, 10, 3)
    assert second.hash_ids[:2] == first.hash_ids[:2]  # 40 tokens are two whole blocks
    assert second.hash_ids[2] != first.hash_ids[2]
    assert len(second.hash_ids) == 4


def test_a_prompt_that_is_cut_keeps_the_cut_share(sessions: Sessions) -> None:
    (session,) = sessions(line((0, 0, "a" * 640, 160, 10), (3, 320, "b" * 80, 100, 20)))
    first, second = session.turns
    shared = [a for a, b in zip(first.hash_ids, second.hash_ids, strict=False) if a == b]
    assert len(shared) == 5  # 320 of 640 characters: 80 of 160 tokens


def test_interleaved_speakers_each_go_on_from_their_own_last_prompt(sessions: Sessions) -> None:
    user, agent = "u" * 400, "a" * 400
    (session,) = sessions(
        line((0, 0, user, 100, 5), (1, 0, agent, 100, 5), (2, 0, user + "v" * 40, 110, 5), (3, 0, agent + "b", 101, 5))
    )
    first_user, first_agent, second_user, second_agent = (turn.hash_ids for turn in session.turns)
    assert second_user[:6] == first_user[:6]
    assert second_agent[:6] == first_agent[:6]
    assert not set(first_user) & set(first_agent)


def test_what_the_model_took_is_no_pause(sessions: Sessions) -> None:
    (session,) = sessions(line((0, 0, "aaaa", 1, 100), (3, 4, "b", 2, 100), (3.1, 5, "c", 2, 0)))
    service_s = 100 * RECORDED_TPOT_S
    assert [turn.think_s for turn in session.turns] == pytest.approx([3 - service_s, 0.0, 0.0])
    assert session.turns[0].service_s == pytest.approx(service_s)
    assert session.turns[2].output_tokens == 1


def spoken(prompt: str, output: str | None, out_tok: int = 5) -> str:
    call = {"t": 0, "keep": 0, "add": prompt, "in_tok": 50, "out_tok": out_tok}
    calls = [call if output is None else {**call, "output": output}, {**call, "t": 9}]
    return json.dumps({"session": "s", "calls": calls})


@pytest.mark.parametrize(
    ("line_", "is_visible"),
    [
        (spoken("fix it", "THOUGHT: look first.\n\n```bash\nls\n```"), True),
        (spoken("book it", "", 0), False),
        (spoken("book it", " \n"), False),
        (spoken("book it", None), True),
        (spoken("book it", None, 0), False),
        (spoken(f"{SIMULATOR_GREETING}\n\nWhich flight?", "The late one."), False),
    ],
)
def test_an_answer_shows_the_text_that_was_recorded(sessions: Sessions, line_: str, is_visible: bool) -> None:
    (session,) = sessions(line_)
    assert session.turns[0].is_visible is is_visible


def test_sessions_share_nothing(sessions: Sessions) -> None:
    call = (0.0, 0, "same text " * 20, 50, 5)
    one, other = sessions(line(call), line(call))
    assert not set(one.turns[0].hash_ids) & set(other.turns[0].hash_ids)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", r"calls\.jsonl:2: "),
        (line(), r"calls\.jsonl:2: a session without calls"),
        (line((0, 0, "a", 0, 1)), r"calls\.jsonl:2: lengths"),
    ],
)
def test_a_bad_line_is_named(sessions: Sessions, text: str, complaint: str) -> None:
    with pytest.raises(TraceError, match=complaint):
        sessions(line((0, 0, "a", 1, 1)), text)


@pytest.mark.shared_data
@pytest.mark.skipif(not MINISWE.exists(), reason=f"{MINISWE.name} is not here")
def test_the_real_miniswe_sessions_have_their_documented_statistics() -> None:
    workload = Workload(sessions=tuple(lmcache_sessions(str(MINISWE), 16, map(float, count()))))
    found = describe(workload.flattened())
    assert (found.requests, len(workload.sessions)) == (402, 20)
    isl, osl = found.isl_tokens, found.osl_tokens
    assert (isl.p50, isl.p90, isl.p99, isl.mean) == pytest.approx((3_902, 12_331, 39_464, 6_170), rel=0.01)
    assert (osl.p50, osl.p90, osl.p99, osl.mean) == pytest.approx((95, 177, 291, 110), rel=0.01)
    assert found.reuse_ratio == pytest.approx(0.935, abs=0.01)  # a little less by whole blocks than by characters
    assert all(turn.is_visible for session in workload.sessions for turn in session.turns)


@pytest.mark.shared_data
@pytest.mark.skipif(not TAUBENCH.exists(), reason=f"{TAUBENCH.name} is not here")
def test_the_real_taubench_sessions_reuse_across_the_interleaving() -> None:
    workload = Workload(sessions=tuple(lmcache_sessions(str(TAUBENCH), 16, map(float, count()))))
    assert describe(workload.flattened()).reuse_ratio > 0.75


@pytest.mark.shared_data
@pytest.mark.skipif(not TAUBENCH.exists(), reason=f"{TAUBENCH.name} is not here")
def test_of_the_real_taubench_sessions_only_the_agent_speaks_to_the_user() -> None:
    turns = [turn for one in lmcache_sessions(str(TAUBENCH), 16, map(float, count())) for turn in one.turns]
    assert (len(turns), sum(turn.is_visible for turn in turns)) == (471, 82)  # 106 of the user, 283 calls of tools
