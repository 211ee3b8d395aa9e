"""`tidegate fleet` and `tidegate serve` as their users start and stop them."""

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from gateway.telemetry.decisions import read_decision_log
from gateway.wire.decision_record import DecisionRecord
from loadtest.fleet.processes import running, wait_until_ready

pytestmark = pytest.mark.e2e

PATIENCE_S = 60.0
MODEL = "emulated-llm"


@pytest.fixture(scope="module")
def fleet() -> Iterator[dict[str, Any]]:
    """What `tidegate fleet` prints; it is stopped as an operator would, and must leave nothing behind."""
    options = ["--pools", "1P1D", "--engine", "h100-llama8b", "--speed", "20", "--port", "0", "--policy", "local"]
    process = subprocess.Popen([sys.executable, "-m", "gateway", "fleet", *options], stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process, process.stdout as output:
        started: dict[str, Any] = json.loads(output.readline())
        yield started
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
    for url in (started["metrics"], *started["workers"].values()):
        with pytest.raises(httpx.ConnectError):
            httpx.get(url)


class Served:
    """`tidegate serve` in front of the fleet's decode worker."""

    def __init__(self, process: subprocess.Popen[bytes], url: str, log: Path) -> None:
        self.process = process
        self.url = f"{url}/v1/completions"
        self.log = log

    def records(self) -> list[DecisionRecord]:
        """What was written down, once the gateway has stopped as it should."""
        assert self.process.wait(PATIENCE_S) == 0
        return list(read_decision_log(self.log))


@contextmanager
def serving(fleet: dict[str, Any], tmp_path: Path, *, drain_s: float) -> Iterator[Served]:
    port, log = free_port(), tmp_path / "decisions.jsonl"
    tree = {
        "server": {"port": port, "drain_s": drain_s},
        "admin": {"port": None},
        "workers": [{"id": "decode-0", "url": fleet["workers"]["decode-0"]}],
        "telemetry": {"decision_log": str(log)},
    }
    config = tmp_path / "tidegate.yaml"
    config.write_text(yaml.safe_dump(tree))
    output = tmp_path / "output"
    with running(["gateway", "serve", "--config", str(config)], log=output) as process:
        url = f"http://127.0.0.1:{port}"
        wait_until_ready(process, f"{url}/readyz", output)
        yield Served(process, url, log)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def asked(max_tokens: int, **fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "prompt": "hello " * 50, "max_tokens": max_tokens, "ignore_eos": True, **fields}


def test_the_first_line_of_a_fleet_has_all_urls(fleet: dict[str, Any]) -> None:
    assert fleet.keys() == {"url", "metrics", "workers"}
    assert fleet["workers"].keys() == {"prefill-0", "decode-0"}
    answer = httpx.post(f"{fleet['url']}/completions", json=asked(4))
    assert answer.status_code == 200
    assert answer.headers["x-tidegate-policy"] == "local"
    assert "tidegate_requests_total" in httpx.get(fleet["metrics"]).text


def test_a_stream_in_flight_may_finish_after_sigterm(fleet: dict[str, Any], tmp_path: Path) -> None:
    with serving(fleet, tmp_path, drain_s=PATIENCE_S) as served:
        with httpx.stream("POST", served.url, json=asked(1000, stream=True), timeout=PATIENCE_S) as response:
            pieces = response.iter_bytes()
            first = next(pieces)
            served.process.send_signal(signal.SIGTERM)
            rest = b"".join(pieces)
        assert (first + rest).endswith(b"data: [DONE]\n\n")
        (record,) = served.records()
        assert record.outcome.kind == "ok"


def test_a_stream_that_would_not_end_is_broken_off_after_the_drain_and_still_recorded(
    fleet: dict[str, Any], tmp_path: Path
) -> None:
    with serving(fleet, tmp_path, drain_s=1.0) as served:
        with httpx.stream("POST", served.url, json=asked(100_000, stream=True), timeout=PATIENCE_S) as response:
            pieces = response.iter_bytes()
            next(pieces)
            served.process.send_signal(signal.SIGTERM)
            with pytest.raises(httpx.RemoteProtocolError):
                b"".join(pieces)
        (record,) = served.records()
        assert record.outcome.kind == "cancelled"


def test_an_interrupted_gateway_loses_no_record(fleet: dict[str, Any], tmp_path: Path) -> None:
    with serving(fleet, tmp_path, drain_s=PATIENCE_S) as served:
        for _ in range(3):
            assert httpx.post(served.url, json=asked(4), timeout=PATIENCE_S).status_code == 200
        served.process.send_signal(signal.SIGINT)
        assert len(served.records()) == 3
