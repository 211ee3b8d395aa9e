from pathlib import Path

import msgspec
import pytest

from gateway.core.step_cost import StepWork
from loadtest.engine.engine_file import (
    EngineFile,
    EngineFileError,
    load_engine_file,
    read_engine_file,
    write_engine_file,
)
from loadtest.engine.presets import ENGINES
from policy_store.costs.file import load_cost_table, read_shipped

NAME = "h100-llama8b"
FILE = EngineFile(limits=ENGINES[NAME], max_model_len=8192, costs=read_shipped(NAME))


def test_a_file_stands_for_the_engine_that_was_written(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    write_engine_file(FILE, path)
    assert read_engine_file(path) == FILE
    spec, table = load_engine_file(path)
    assert spec == ENGINES[NAME]
    work = StepWork(prefill=((500, 64),), decode_sequences=3, decode_context_tokens=999)
    assert table.step_seconds(work) == load_cost_table(NAME).step_seconds(work)


def test_what_is_no_engine_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text('{"limits": {}}')
    with pytest.raises(EngineFileError, match=r"x\.json is no engine file"):
        load_engine_file(path)


@pytest.mark.parametrize("limits", [{"name": "x", "max_batched_tokens": 1}])
def test_limits_that_no_engine_has_are_refused(tmp_path: Path, limits: dict[str, object]) -> None:
    path = tmp_path / "x.json"
    tree = msgspec.to_builtins(FILE) | {"limits": limits}
    path.write_bytes(msgspec.json.encode(tree))
    with pytest.raises(EngineFileError, match="token budget"):
        load_engine_file(path)


def test_prices_that_fall_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    dense = msgspec.structs.replace(FILE.costs.dense, seconds=tuple(reversed(FILE.costs.dense.seconds)))
    costs = msgspec.structs.replace(FILE.costs, dense=dense)
    write_engine_file(msgspec.structs.replace(FILE, costs=costs), path)
    with pytest.raises(EngineFileError, match="must not fall"):
        load_engine_file(path)
