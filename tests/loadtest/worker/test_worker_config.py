from typing import Any

import msgspec
import pytest

from gateway.core.types import Role
from loadtest.engine.presets import UnknownEngine
from loadtest.worker.config import KvLoadFailurePolicy, WorkerConfig
from loadtest.worker.pd import HttpKvPeers
from loadtest.worker.server import build_worker
from tests.loadtest.worker.worker_lab import VirtualClock

LEAST = {"name": "p0", "engine": "h100-llama8b", "model": "llama"}


def decoded(**settings: Any) -> WorkerConfig:
    return msgspec.json.decode(msgspec.json.encode(LEAST | settings), type=WorkerConfig)


def test_json_gives_the_same_as_the_constructor() -> None:
    config = decoded(role="prefill", kv_load_failure_policy="fail", speed=2)
    assert config == WorkerConfig(
        name="p0",
        engine="h100-llama8b",
        model="llama",
        role=Role.PREFILL,
        kv_load_failure_policy=KvLoadFailurePolicy.FAIL,
        speed=2.0,
    )


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": ""},
        {"model": ""},
        {"speed": 0},
        {"port": 70_000},
        {"max_model_len": 0},
        {"block_tokens": -1},
        {"role": "judge"},
        {"kv_load_failure_policy": "hope"},
    ],
)
def test_settings_that_no_worker_can_have_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        decoded(**wrong)


def build(**settings: Any) -> Any:
    config = WorkerConfig(**LEAST | settings)
    return build_worker(config, address=("127.0.0.1", 1), peers=HttpKvPeers(), clock=VirtualClock())


def test_context_is_what_was_asked_or_what_fits() -> None:
    assert build().serving.max_model_len == 131_072
    assert build(max_model_len=4096).serving.max_model_len == 4096
    assert build(block_tokens=16, total_blocks=100).serving.max_model_len == 1600


def test_context_that_the_kv_cache_cannot_hold_is_refused() -> None:
    with pytest.raises(ValueError, match="more than the KV cache holds"):
        build(block_tokens=16, total_blocks=100, max_model_len=1601)


def test_unknown_engine_is_refused() -> None:
    with pytest.raises(UnknownEngine):
        build(engine="abacus")
