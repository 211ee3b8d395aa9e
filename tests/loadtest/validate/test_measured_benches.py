from typing import Any

import pytest

from loadtest.validate.measured_benches import BENCHES, GIB, engine_spec, profiled_model
from tests.loadtest.validate.measured_lab import small_run

LLAMA_4090, LLAMA_PRO, QWEN_PRO = BENCHES


def two_gpus() -> dict[str, Any]:
    run = small_run()
    run["meta"]["engine_kwargs"]["tensor_parallel_size"] = 2
    return run


def test_limits_are_the_runs_own() -> None:
    spec = engine_spec(LLAMA_4090, small_run(kv_cache={"num_gpu_blocks": 2588}))
    assert (spec.max_batched_tokens, spec.max_running, spec.block_tokens) == (2048, 128, 16)


def test_of_recorded_blocks_one_is_vllms_placeholder() -> None:
    assert engine_spec(LLAMA_4090, small_run(kv_cache={"num_gpu_blocks": 2588})).total_blocks == 2587


def test_blocks_that_were_not_recorded_are_what_the_weights_leave() -> None:
    spec = engine_spec(LLAMA_PRO, small_run())
    weights = 2 * 8.03e9
    assert spec.total_blocks * 16 * 131_072 == pytest.approx(0.9 * 96 * GIB - weights, rel=1e-3)


def test_a_group_has_the_memory_of_all_its_gpus() -> None:
    spec = engine_spec(QWEN_PRO, two_gpus())
    weights = 2 * 32.76e9
    assert spec.total_blocks * 16 * 262_144 == pytest.approx(2 * 0.9 * 96 * GIB - weights, rel=1e-3)


def test_only_a_group_has_a_link() -> None:
    assert profiled_model(LLAMA_PRO, small_run()).link is None
    link = profiled_model(QWEN_PRO, two_gpus()).link
    assert link is not None
    assert link.bytes_per_s == 16e9
    assert link.latency_s == pytest.approx(20e-6)
