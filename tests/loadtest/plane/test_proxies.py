"""How each proxy is started."""

from hashlib import sha256
from pathlib import Path

import pytest

from gateway.core.types import Role
from gateway.settings import load_settings
from loadtest.plane.proxies import ALWAYS_REMOTE, API_KEY, Worker, nginx, tidegate, vllm_router

BOTH = [Worker(name="worker-0", role=Role.BOTH, port=9001)]
PAIR = [Worker(name="prefill-0", role=Role.PREFILL, port=9001), Worker(name="decode-0", role=Role.DECODE, port=9002)]


@pytest.mark.parametrize("mode", ["auto", "asgi"])
def test_the_gateway_has_everything_on(mode: str, tmp_path: Path) -> None:
    proxy = tidegate(BOTH, tmp_path, mode=mode)
    settings = load_settings(Path(proxy.command[-1]))
    assert proxy.name == f"tidegate {mode}"
    assert (settings.server.host, settings.server.port, settings.server.data_plane) == ("127.0.0.1", proxy.port, mode)
    assert [key.scopes for key in settings.auth.keys] == [("data",)]
    assert settings.telemetry.decision_log is not None
    assert settings.telemetry.request_log
    assert settings.upstream.max_attempts > 1
    assert settings.routing.policy == "dynamo"
    assert settings.routing.conversation.names is not None


def test_the_load_generators_key_is_known(tmp_path: Path) -> None:
    (key,) = load_settings(Path(tidegate(BOTH, tmp_path).command[-1])).auth.keys
    assert key.sha256 == sha256(API_KEY.encode()).hexdigest()


def test_further_settings_take_the_place_of_sections(tmp_path: Path) -> None:
    settings = load_settings(Path(tidegate(PAIR, tmp_path, settings=ALWAYS_REMOTE).command[-1]))
    assert settings.routing.policy == "remote"
    assert [(worker.id, worker.role) for worker in settings.workers] == [
        ("prefill-0", Role.PREFILL),
        ("decode-0", Role.DECODE),
    ]


def test_the_router_is_told_of_one_worker_or_of_a_pair() -> None:
    one = vllm_router(Path("router"), BOTH).command
    assert one[-2:] == ("--worker-urls", "http://127.0.0.1:9001")
    pair = vllm_router(Path("router"), PAIR).command
    flags = ("--vllm-pd-disaggregation", "--prefill", "http://127.0.0.1:9001", "--decode", "http://127.0.0.1:9002")
    assert pair[-5:] == flags
    assert pair[pair.index("--policy") + 1] == "round_robin"


def test_nginx_listens_on_loopback_and_keeps_its_connections(tmp_path: Path) -> None:
    proxy = nginx(Path("nginx"), BOTH, tmp_path)
    config = Path(proxy.command[-1]).read_text()
    assert f"listen 127.0.0.1:{proxy.port} " in config
    assert "server 127.0.0.1:9001; keepalive 4096;" in config
    assert config.count("{") == config.count("}")
