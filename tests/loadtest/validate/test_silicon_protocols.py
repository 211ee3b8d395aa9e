from dataclasses import replace

import pytest

from loadtest.engine.fitting.shapes import LLAMA_70B, QWEN3_32B, Precision
from loadtest.engine.fitting.systems import H100
from loadtest.validate.silicon_protocols import AICONFIGURATOR, ALTERNATIVES, INFERENCE_MAX, PROTOCOLS
from loadtest.validate.silicon_rows import MODELS
from tests.loadtest.validate.silicon_lab import POINT


def test_every_model_that_is_read_has_a_protocol() -> None:
    assert set(PROTOCOLS) == set(MODELS.values())
    assert set(ALTERNATIVES) <= set(PROTOCOLS)


def test_lengths_are_drawn_between_the_shortest_share_and_the_nominal_length() -> None:
    prompts, outputs = zip(*INFERENCE_MAX.lengths(replace(POINT, concurrency=64)), strict=True)
    assert len(prompts) == 640
    assert (min(prompts), max(prompts)) == (800, 1000)
    assert (min(outputs), max(outputs)) == (80, 100)


def test_the_same_row_always_has_the_same_lengths() -> None:
    assert INFERENCE_MAX.lengths(POINT) == INFERENCE_MAX.lengths(POINT)


def test_fixed_lengths_are_the_nominal_ones() -> None:
    assert set(AICONFIGURATOR.lengths(POINT)) == {(1000, 100)}


def test_a_server_that_was_started_for_the_row_runs_as_many_as_there_are_clients() -> None:
    spec = INFERENCE_MAX.engine_spec(POINT)
    assert (spec.max_running, spec.max_batched_tokens) == (8, 8192)


def test_a_budget_can_follow_the_prompt() -> None:
    spec = AICONFIGURATOR.engine_spec(replace(POINT, model=QWEN3_32B))
    assert (spec.max_running, spec.max_batched_tokens) == (512, 512 + 1000 + 1500)


@pytest.mark.parametrize(("is_h100", "kv"), [(True, Precision.BF16), (False, Precision.FP8)])
def test_the_cache_has_the_systems_precision_or_that_of_the_weights(is_h100: bool, kv: Precision) -> None:
    point = replace(POINT, system=H100) if is_h100 else POINT
    assert INFERENCE_MAX.deployment(point).kv is kv


def test_a_bfloat16_cache_has_room_for_half_the_tokens() -> None:
    point = replace(POINT, system=H100, model=LLAMA_70B, gpus=2)
    half = INFERENCE_MAX.engine_spec(point).total_blocks
    whole = replace(INFERENCE_MAX, kv_on={}).engine_spec(point).total_blocks
    assert half == whole // 2
