from pathlib import Path

import pytest

from gateway.core.step_cost import StepWork
from gateway.policies import build_policy
from gateway.settings import SettingsError, load_settings
from loadtest.engine.engine_file import EngineFile, write_engine_file
from loadtest.engine.presets import ENGINES
from loadtest.engine.transfer import transfer_seconds
from policy_store.costs.engine import EnginePriceError, read_engine_costs
from policy_store.costs.file import load_cost_table, read_shipped

NAME = "h100-llama8b"


@pytest.fixture
def engine_file(tmp_path: Path) -> Path:
    file = tmp_path / "engine.json"
    write_engine_file(EngineFile(limits=ENGINES[NAME], max_model_len=None, costs=read_shipped(NAME)), file)
    return file


def test_an_engine_file_prices_steps_and_transfers_as_the_engine_does(engine_file: Path) -> None:
    costs = read_engine_costs(engine_file)
    work = StepWork(prefill=((1000, 64),))
    assert costs.prefill_s(1000, 64) == load_cost_table(NAME).step_seconds(work)
    assert costs.transfer_s(5000) == pytest.approx(transfer_seconds(5000, ENGINES[NAME]))
    assert costs.max_batched_tokens == ENGINES[NAME].max_batched_tokens


def test_one_engine_file_stands_for_both_pools(engine_file: Path) -> None:
    policy = build_policy(load_settings(overrides=[f"routing.engines.decode={engine_file}"]))
    assert policy.costs is not None
    assert policy.costs.prefill == policy.costs.decode == read_engine_costs(engine_file)
    assert build_policy(load_settings()).costs is None


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"limits": {}, "costs": {}}'])
def test_what_is_no_engine_file_is_refused_by_name(text: str, tmp_path: Path) -> None:
    file = tmp_path / "engine.json"
    file.write_text(text)
    with pytest.raises(EnginePriceError, match="prices no engine"):
        read_engine_costs(file)
    with pytest.raises(SettingsError, match=r"engine\.json"):
        build_policy(load_settings(overrides=[f"routing.engines.prefill={file}"]))


def test_a_file_that_is_not_there_is_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(EnginePriceError, match="No such file"):
        read_engine_costs(tmp_path / "none.json")


def test_a_link_without_a_rate_prices_nothing(engine_file: Path) -> None:
    rate = ENGINES[NAME].transfer_bytes_per_s
    text = engine_file.read_text()
    assert f'"transfer_bytes_per_s": {rate}' in text
    engine_file.write_text(text.replace(f'"transfer_bytes_per_s": {rate}', '"transfer_bytes_per_s": 0.0'))
    with pytest.raises(EnginePriceError, match="transfer_bytes_per_s"):
        read_engine_costs(engine_file)
