"""`tidegate serve` through its life: it drains, it reloads, and it is administered, as a process of its own."""

import json
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from gateway.telemetry.decisions import read_decision_log
from loadtest.fleet.processes import first_line, running, wait_until_ready
from tests.e2e.test_processes import free_port

pytestmark = pytest.mark.e2e

PATIENCE_S = 60.0
MODEL = "emulated-llm"
BOTH_PLANES = pytest.mark.parametrize("data_plane", ["auto", "asgi"])


@pytest.fixture(scope="module")
def worker_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    config = {"name": "w0", "role": "both", "engine": "h100-llama8b", "model": MODEL, "speed": 2.0}
    log = tmp_path_factory.mktemp("worker") / "output"
    arguments = ["loadtest.worker", "--config-json", json.dumps([config])]
    with running(arguments, log=log, pipe_output=True) as process:
        yield first_line(process, log)["workers"][0]["url"]


class Served:
    """A gateway process, its settings file and its output."""

    def __init__(self, folder: Path, worker_url: str, **server: Any) -> None:
        self.url, self.admin = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
        self.config, self.output, self.log = folder / "tidegate.yaml", folder / "output", folder / "decisions.jsonl"
        self.tree: dict[str, Any] = {
            "server": {"port": port_of(self.url), "drain_s": 20.0, **server},
            "admin": {"port": port_of(self.admin)},
            "workers": [{"id": "w0", "url": worker_url}],
            "routing": {"policy": "local"},
            "telemetry": {"decision_log": str(self.log)},
        }
        self.put()

    def put(self, **sections: Any) -> None:
        self.tree |= sections
        self.config.write_text(yaml.safe_dump(self.tree))

    def policy(self) -> str:
        name: str = httpx.get(f"{self.admin}/policy").json()["name"]
        return name

    def lines(self, event: str) -> list[dict[str, Any]]:
        """The log lines of one event so far."""
        read = [json.loads(line) for line in self.output.read_text().splitlines() if line.startswith("{")]
        return [line for line in read if line.get("event") == event]

    def stream(self, max_tokens: int) -> Any:
        body = {"model": MODEL, "prompt": "hello " * 50, "max_tokens": max_tokens, "ignore_eos": True, "stream": True}
        return httpx.stream("POST", f"{self.url}/v1/completions", json=body, timeout=PATIENCE_S)


@pytest.fixture
def serve(tmp_path: Path, worker_url: str) -> Iterator[Callable[..., tuple[Any, Served]]]:
    """Start a gateway with these server settings: its process and the rest."""

    with ExitStack() as stack:

        def start(**server: Any) -> tuple[Any, Served]:
            served = Served(tmp_path, worker_url, **server)
            process = stack.enter_context(running(["gateway", "serve", "-c", str(served.config)], log=served.output))
            wait_until_ready(process, f"{served.url}/readyz", served.output)
            return process, served

        yield start


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2])


def until(condition: Callable[[], object]) -> None:
    """Wait until the condition holds, or give up."""
    end_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end_s, "it never came to that"
        time.sleep(0.02)


@BOTH_PLANES
def test_a_drain_turns_readiness_off_serves_on_and_lets_streams_finish(serve: Any, data_plane: str) -> None:
    process, served = serve(drain_delay_s=6.0, drain_s=60.0, data_plane=data_plane)
    with served.stream(2800) as response:
        pieces = response.iter_bytes()
        first = next(pieces)
        process.send_signal(signal.SIGTERM)
        until(lambda: httpx.get(f"{served.url}/readyz").status_code == 503)
        assert httpx.get(f"{served.url}/readyz").json()["reason"] == "draining"
        assert httpx.get(f"{served.url}/livez").status_code == 200
        assert "tidegate_requests_total" in httpx.get(f"{served.url}/metrics").text
        with served.stream(4) as late:
            assert late.read().endswith(b"data: [DONE]\n\n")
        until(lambda: refuses(served.url))
        assert httpx.get(f"{served.admin}/workers").json()[0]["inflight_requests"] == 1
        assert (first + b"".join(pieces)).endswith(b"data: [DONE]\n\n")
    assert process.wait(PATIENCE_S) == 0
    assert refuses(served.admin)
    assert [record.outcome.kind for record in read_decision_log(served.log)] == ["ok", "ok"]


@BOTH_PLANES
def test_a_second_signal_ends_at_once_and_the_stream_is_recorded(serve: Any, data_plane: str) -> None:
    process, served = serve(drain_delay_s=60.0, data_plane=data_plane)
    with served.stream(100_000) as response:
        pieces = response.iter_bytes()
        next(pieces)
        process.send_signal(signal.SIGTERM)
        until(lambda: served.lines("gateway.draining"))
        process.send_signal(signal.SIGTERM)
        with pytest.raises(httpx.RemoteProtocolError):
            for _ in pieces:
                pass
    assert process.wait(PATIENCE_S) == 0
    (record,) = read_decision_log(served.log)
    assert record.outcome.kind == "cancelled"


def test_sighup_swaps_the_policy_under_a_stream_and_a_bad_file_changes_nothing(serve: Any) -> None:
    process, served = serve()
    with served.stream(500) as response:
        pieces = response.iter_bytes()
        first = next(pieces)
        served.put(routing={"policy": "remote"}, aliases={"gpt": MODEL})
        process.send_signal(signal.SIGHUP)
        until(lambda: served.policy() == "remote")
        served.put(routing={"policy": "magic"}, aliases={})
        process.send_signal(signal.SIGHUP)
        until(lambda: served.lines("settings.refused"))
        assert served.policy() == "remote"
        assert {card["id"] for card in httpx.get(f"{served.url}/v1/models").json()["data"]} == {MODEL, "gpt"}
        assert (first + b"".join(pieces)).endswith(b"data: [DONE]\n\n")
    (reloaded,) = served.lines("settings.reloaded")
    assert set(reloaded["changed"]) == {"routing.policy", "aliases.gpt"}


def test_an_admin_port_that_is_taken_stops_the_start_with_one_line(tmp_path: Path, worker_url: str) -> None:
    served = Served(tmp_path, worker_url)
    served.put(admin={"port": port_of(worker_url)})
    with running(["gateway", "serve", "-c", str(served.config)], log=served.output) as process:
        assert process.wait(PATIENCE_S) == 2
    assert "error: [Errno 98]" in served.output.read_text()


def refuses(url: str) -> bool:
    try:
        httpx.get(f"{url}/livez")
    except httpx.ConnectError:
        return True
    return False
