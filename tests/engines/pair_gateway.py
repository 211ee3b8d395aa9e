"""A gateway in front of a pair of engines.

The rule of this module: what the checks of real engines ask of a gateway alike stands here; how it routes is theirs.
"""

import contextlib
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from loadtest.fleet.processes import running, wait_until_ready
from tests.engines.engine_pair import Pair

SLOW_ENGINE_S = 20.0
"""An engine on shared cores may not answer for seconds, and is well all the same."""


def decision_log(folder: Path) -> Path:
    """Where the gateway that ran in a folder wrote its decisions."""
    return folder / "decisions.jsonl"


@contextlib.contextmanager
def running_gateway(pair: Pair, routing: Mapping[str, Any], folder: Path) -> Iterator[str]:
    """The URL of a gateway with these `routing` settings; its settings, decisions and log go to the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    decision_log(folder).unlink(missing_ok=True)
    config, output = folder / "tidegate.yaml", folder / "gateway.log"
    port = _free_port()
    config.write_text(yaml.safe_dump(_settings(pair, routing, port, decision_log(folder))))
    with running(["gateway", "serve", "--stop-with-stdin", "--config", str(config)], log=output) as process:
        url = f"http://127.0.0.1:{port}"
        wait_until_ready(process, f"{url}/readyz", output)
        yield url


def _settings(pair: Pair, routing: Mapping[str, Any], port: int, log: Path) -> dict[str, Any]:
    return {
        "server": {"port": port, "drain_s": 5.0},
        "workers": [
            {"id": pair.prefill.name, "url": pair.prefill.url, "role": "prefill"},
            {"id": pair.decode.name, "url": pair.decode.url, "role": "decode"},
        ],
        "admin": {"port": None},
        "fleet": {"probe_timeout_s": SLOW_ENGINE_S},
        "upstream": {leg: {"connect_timeout_s": SLOW_ENGINE_S} for leg in ("prefill", "decode")},
        "routing": dict(routing),
        "telemetry": {"decision_log": str(log)},
    }


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port
