from dataclasses import replace

import pytest

from loadtest.engine.engine import Engine
from loadtest.engine.presets import ENGINES, UnknownEngine, load_engine, power_model
from loadtest.engine.types import EngineRequest, RequestFinished


@pytest.mark.parametrize("name", sorted(ENGINES))
def test_a_preset_serves_a_request(name: str) -> None:
    spec, costs = load_engine(name)
    assert spec.name == costs.name == name
    engine = Engine(spec, costs)
    engine.add(EngineRequest(request_id="a", prompt_tokens=1000, output_tokens=4), 0.0)
    events = []
    while (due_s := engine.next_event_at_s()) is not None:
        events += engine.advance(due_s)
    assert len(events) == 5
    assert isinstance(events[-1], RequestFinished)


@pytest.mark.parametrize(
    ("name", "kv_bytes", "tokens"),
    [
        ("h100-llama8b", 131_072, 438_592),
        ("h100-llama70b-tp4", 327_680, 462_144),
        ("h200-llama70b-tp4-fp8", 163_840, 2_781_312),
    ],
)
def test_the_memory_left_by_the_weights_holds_the_cache(name: str, kv_bytes: int, tokens: int) -> None:
    spec = ENGINES[name]
    assert spec.kv_bytes_per_token == kv_bytes
    assert spec.total_blocks * spec.block_tokens == tokens


def test_an_unknown_name_is_answered_with_those_that_are_known() -> None:
    with pytest.raises(UnknownEngine, match=r"called 'b200'; there are a100-llama70b-tp4, .*, h200-qwen32b"):
        load_engine("b200")


def test_options_behind_a_name_change_what_they_say_and_nothing_else() -> None:
    plain, costs = load_engine("h100-llama8b")
    chunked, same = load_engine("h100-llama8b@chunk512")
    assert chunked == replace(plain, name="h100-llama8b@chunk512", long_prefill_tokens=512)
    assert same == costs
    both, slowed = load_engine("h100-llama8b@cap40@chunk512")
    assert (both.long_prefill_tokens, both.total_blocks) == (512, plain.total_blocks)
    assert slowed != costs
    assert power_model("h100-llama8b@chunk512") == power_model("h100-llama8b") != power_model(both.name)


@pytest.mark.parametrize(
    "name", ["b200@chunk512", "h100-llama8b@chunk0", "h100-llama8b@chunk512@cap40", "h100-llama8b@"]
)
def test_options_that_there_are_not_are_unknown(name: str) -> None:
    with pytest.raises(UnknownEngine):
        load_engine(name)
