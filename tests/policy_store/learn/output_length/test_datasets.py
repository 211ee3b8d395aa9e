import gzip
import json
from pathlib import Path

import pytest

from gateway.core.output_length.features import MEASURED
from policy_store.learn.output_length.datasets import SOURCES, DataSetError, load
from policy_store.learn.output_length.rows import LengthRow
from tests.policy_store.learn.output_length.length_lab import DATA


def written(name: str, folder: Path, *lines: object) -> list[LengthRow]:
    path = folder / SOURCES[name].file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress("\n".join(map(json.dumps, lines)).encode()))
    rows = load(name, folder)
    assert rows is not None
    return rows


def measured(row: LengthRow, name: str) -> float:
    return row.measured[MEASURED.index(name)]


def test_a_prompt_is_a_row_for_each_model_and_one_group(tmp_path: Path) -> None:
    line = {"set": "v2.0", "cluster": "coding", "prompt": "Write code", "out_tok": {"a": 5, "b": 900}}
    first, second = written("arena_hard", tmp_path, line)
    assert (first.model, first.output_tokens, second.model, second.output_tokens) == ("a", 5, "b", 900)
    assert first.group == second.group
    assert measured(first, "prompt_token_len") == 2.5


def test_prompts_of_one_topic_are_one_group(tmp_path: Path) -> None:
    lines = [{"set": "v0.1", "cluster": "ABC", "prompt": text, "out_tok": {"a": 5}} for text in ("one", "two")]
    assert len({row.group for row in written("arena_hard", tmp_path, *lines)}) == 1


def test_a_call_knows_its_own_speakers_answers_only(tmp_path: Path) -> None:
    calls = [("user " * 9, 10), ("agent " * 9, 0), ("user " * 9 + "goes on", 30), ("agent " * 9 + "too", 40)]
    coded, before = [], ""
    for text, tokens in calls:
        keep = 0 if not text.startswith(before) else len(before)
        coded.append({"t": 0.0, "keep": keep, "add": text[keep:], "out_tok": tokens})
        before = text
    rows = written("miniswe", tmp_path, {"session": "s", "calls": coded})
    assert [row.output_tokens for row in rows] == [10, 30, 40]  # what was not recorded is no row
    assert [measured(row, "previous_outputs") for row in rows] == [0.0, 1.0, 0.0]


def test_airline_trials_of_a_task_are_one_group(tmp_path: Path) -> None:
    messages = [
        {"role": "system", "content": "policy"},
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]},
        {"role": "tool", "content": "result"},
        {"role": "assistant", "content": "y" * 40},
    ]
    rows = written("airline", tmp_path, *[{"task_id": 3, "messages": messages}] * 2)
    assert len(rows) == 4
    assert {row.group for row in rows} == {"task-3"}
    assert [measured(row, "after_tool") for row in rows[:2]] == [0.0, 1.0]
    assert rows[1].output_tokens == 10


def test_sub_agents_are_conversations_inside_their_callers_group(tmp_path: Path) -> None:
    call = {"type": "n", "model": "m", "in": 100, "out": 50, "input_types": ["text"], "think_time": 2.0}
    agent = {"type": "subagent", "requests": [call]}
    rows = written("claude_code", tmp_path, {"id": "s", "requests": [call, agent, call]})
    assert [measured(row, "previous_outputs") for row in rows] == [0.0, 0.0, 1.0]
    assert {row.group for row in rows} == {"s"}
    assert all(row.terms is None for row in rows)


def test_an_absent_file_is_none_and_a_damaged_one_an_error(tmp_path: Path) -> None:
    assert load("magagent", tmp_path) is None
    path = tmp_path / SOURCES["miniswe"].file
    path.parent.mkdir(parents=True)
    path.write_bytes(b"not gzip")
    with pytest.raises(DataSetError, match="miniswe"):
        load("miniswe", tmp_path)


@pytest.mark.shared_data
@pytest.mark.parametrize(
    ("name", "count"), [("arena_hard", 2250), ("miniswe", 402), ("taubench", 188), ("airline", 2454)]
)
def test_the_public_data_sets_have_so_many_rows(name: str, count: int) -> None:
    rows = load(name, DATA)
    if rows is None:
        pytest.skip(f"{DATA} is absent")
    assert len(rows) == count
