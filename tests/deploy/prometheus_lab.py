"""A real Prometheus that watches an emulated fleet under load."""

import contextlib
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import uvloop
import yaml

from deploy.grafana.results import Span
from gateway.core.path.priced import JointPolicy
from gateway.core.path.rules import DynamoRule
from loadtest.client.options import LoadOptions
from loadtest.client.runner import run_load
from loadtest.compare.priced_wrongly import mispriced
from loadtest.fleet.fleet import DEFAULT_MODEL, FleetSpec, RunningFleet, running_fleet
from loadtest.fleet.pools import Pools
from loadtest.learning.prices import fleet_costs
from loadtest.traces.synthetic import SyntheticMix, synthetic_trace
from policy_store.bundle import Bundle, new_bundle
from policy_store.path_models import model_of
from policy_store.store import FileStore
from tests.fleet.shared.redis_lab import LabServer
from tests.policy_store.output_length_factories import predictor_files

PROMETHEUS = shutil.which("prometheus")
PROMTOOL = shutil.which("promtool")
PROMETHEUS_DIRECTORY = Path(__file__).parents[2] / "deploy" / "prometheus"

ENGINE = "h100-llama70b-tp4"
USUAL_LENGTHS = (-1.2, -1.0)
"""Logarithms that the predictor's tree adds to its guess for an unknown model, so that it is near the traffic's."""
SCRAPE_S = 1.0
READY_S = 30.0
MAX_FAILED_RATIO = 0.05
"""A crowded machine may cost a request its connection; the panels are about the rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """How much load, and how fast the engines run."""

    speed: float
    load_s: float
    mix: SyntheticMix
    """Per second of the engine; conversations go on soon enough for some prompts to be cached."""
    rate_window_s: float


QUICK = Scenario(
    speed=10.0, load_s=20.0, mix=SyntheticMix(rate_rps=1.5, isl_scale=0.5, gap_scale=0.1), rate_window_s=6.0
)
"""For tests."""
REAL_TIME = Scenario(
    speed=1.0, load_s=180.0, mix=SyntheticMix(rate_rps=2.5, isl_scale=0.5, gap_scale=0.1), rate_window_s=15.0
)
"""For pictures: latencies are the engines' own, and the dashboards' default bounds hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """A fleet that has had its load, and what remembers it."""

    prometheus_url: str
    fleet: RunningFleet
    span: Span

    def pages(self) -> str:
        """What the gateway and its workers show a scrape."""
        urls = [self.fleet.url, *(worker["url"] for worker in self.fleet.workers)]
        return "\n".join(httpx.get(f"{url}/metrics", trust_env=False).text for url in urls)


@contextlib.contextmanager
def observed_fleet(directory: Path, scenario: Scenario = QUICK) -> Iterator[Observed]:
    """Start a 2P2D fleet, its shared state and a Prometheus, send the load, and keep all up for questions.

    It decides by a bundle with prices and a predictor of output lengths, so that every panel has something to show.
    """
    with _shared_state(directory) as shared:
        yield from _observed_fleet(directory, scenario, shared)


@contextlib.contextmanager
def _shared_state(directory: Path) -> Iterator[LabServer]:
    server = LabServer(directory)
    server.start()
    try:
        yield server
    finally:
        server.kill()


def _observed_fleet(directory: Path, scenario: Scenario, shared: LabServer) -> Iterator[Observed]:
    store = FileStore(directory / "policies")
    store.activate(store.add(_priced_bundle(scenario)))
    spec = FleetSpec(
        pools=Pools(prefill=2, decode=2),
        engine=ENGINE,
        speed=scenario.speed,
        settings={
            "slo": {"default": {"ttft_s": 2.0 / scenario.speed, "tpot_s": 0.04 / scenario.speed}},
            # By load, so that conversations are remembered, and there is something to share.
            "routing": {"policy": "learned", "store": str(store.root), "conversation": {"pinning": "load"}},
            "telemetry": {"decision_log": str(directory / "decisions.jsonl")},
            "shared": {"url": shared.url},
        },
    )
    with running_fleet(spec) as fleet, _running_prometheus(directory, fleet) as url:
        start_s = time.time()
        _send_load(fleet, scenario)
        time.sleep(2 * SCRAPE_S)  # the last requests are in the next scrape
        end_s = time.time()
        span = Span(start_s=start_s, end_s=end_s, step_s=SCRAPE_S, rate_window_s=scenario.rate_window_s)
        yield Observed(prometheus_url=url, fleet=fleet, span=span)


def _priced_bundle(scenario: Scenario) -> Bundle:
    """Routes by price, at the pace of the scenario's clock; its lengths are guessed by one split of the prompt's."""
    costs = mispriced(fleet_costs(ENGINE), 1 / scenario.speed, 1 / scenario.speed)
    path = model_of(JointPolicy(baseline=DynamoRule()), costs)
    return new_bundle(path, output_length=predictor_files(leaves=USUAL_LENGTHS))


def _send_load(fleet: RunningFleet, scenario: Scenario) -> None:
    requests = round(scenario.mix.rate_rps * scenario.speed * scenario.load_s)
    trace = synthetic_trace(scenario.mix, requests, seed=3)
    options = LoadOptions(
        url=fleet.openai_url,
        model=DEFAULT_MODEL,
        run_id="dashboards",
        speed=scenario.speed,
        session_header="x-session-id",
    )
    records = uvloop.run(run_load(options, trace))
    failed = [record for record in records if not record.ok]
    assert len(failed) < MAX_FAILED_RATIO * len(records), failed[:3]
    unknown = {"model": "no-such-model", "messages": [{"role": "user", "content": "hello"}]}
    refused = httpx.post(f"{fleet.openai_url}/chat/completions", json=unknown, trust_env=False)
    assert refused.status_code == 404


@contextlib.contextmanager
def _running_prometheus(directory: Path, fleet: RunningFleet) -> Iterator[str]:
    assert PROMETHEUS is not None
    config = directory / "prometheus.yml"
    config.write_text(yaml.safe_dump(scrape_config(fleet)))
    address = f"127.0.0.1:{_free_port()}"
    arguments = [
        f"--config.file={config}",
        f"--storage.tsdb.path={directory / 'data'}",
        f"--web.listen-address={address}",
        "--log.level=warn",
    ]
    log = directory / "prometheus.log"
    with log.open("wb") as output, subprocess.Popen([PROMETHEUS, *arguments], stdout=output, stderr=output) as process:
        try:
            _wait_until_ready(process, f"http://{address}/-/ready", log)
            yield f"http://{address}"
        finally:
            process.terminate()


def scrape_config(fleet: RunningFleet) -> Mapping[str, Any]:
    """The shipped configuration with this fleet's targets, scraped every second."""
    tree: dict[str, Any] = yaml.safe_load((PROMETHEUS_DIRECTORY / "prometheus.yml").read_text())
    tree["global"] = {"scrape_interval": f"{SCRAPE_S:g}s", "evaluation_interval": f"{SCRAPE_S:g}s"}
    tree["rule_files"] = [str(PROMETHEUS_DIRECTORY / name) for name in tree["rule_files"]]
    jobs = {job["job_name"]: job for job in tree["scrape_configs"]}
    jobs["tidegate"]["static_configs"] = [{"targets": _targets([fleet.url])}]
    jobs["vllm"]["static_configs"] = [{"targets": _targets([worker["url"] for worker in fleet.workers])}]
    return tree


def _targets(urls: Sequence[str]) -> list[str]:
    return [url.removeprefix("http://") for url in urls]


def _wait_until_ready(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline_s = time.monotonic() + READY_S
    while process.poll() is None and time.monotonic() < deadline_s:
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(url, trust_env=False).status_code == 200:
                return
        time.sleep(0.1)
    raise AssertionError(f"Prometheus did not start: {log.read_text()[-500:]}")


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port
