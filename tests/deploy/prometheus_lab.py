"""A real Prometheus that watches an emulated fleet under load.

The rule of this module: it waits for what is to be seen, never for a time. Load goes on in rounds, each scraped to its
end, until every query of every panel has numbers: a crowded machine takes longer and shows the same.
"""

import asyncio
import contextlib
import json
import math
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import uvloop
import yaml

from deploy.grafana.generate import DASHBOARDS, DIRECTORY
from deploy.grafana.results import Answers, Span, ask
from gateway.core.path.priced import JointPolicy
from gateway.core.path.rules import DynamoRule
from loadtest.client.options import LoadOptions
from loadtest.client.runner import run_load
from loadtest.compare.priced_wrongly import mispriced
from loadtest.fleet.fleet import DEFAULT_MODEL, FleetSpec, RunningFleet, free_port, running_fleet
from loadtest.fleet.pools import Pools
from loadtest.learning.prices import fleet_costs
from loadtest.replicas.balancer import Balancer
from loadtest.replicas.plan import Plan
from loadtest.replicas.sessions import Crowd
from loadtest.traces.synthetic import SyntheticMix, synthetic_trace
from loadtest.traces.types import TraceRequest
from policy_store.bundle import Bundle, new_bundle
from policy_store.path_models import model_of
from policy_store.store import FileStore
from tests.fleet.shared.redis_lab import LabServer
from tests.policy_store.output_length_factories import predictor_files

PROMETHEUS = shutil.which("prometheus")
PROMTOOL = shutil.which("promtool")
PROMETHEUS_DIRECTORY = Path(__file__).parents[2] / "deploy" / "prometheus"

ROUTING, SELECTION_SHARE, PATH_MIX = "routing-decisions.json", "Selection share per worker", "Path mix"

ENGINE = "h100-llama70b-tp4"
POOLS = Pools(prefill=2, decode=2)
USUAL_LENGTHS = (-1.2, -1.0)
"""Logarithms that the predictor's tree adds to its guess for an unknown model, so that it is near the traffic's."""
SCRAPE_S = 1.0
PATIENCE_S = 300.0
"""Far longer than anything takes: only what never comes is given up."""
POLL_S = 0.1
MAX_ROUNDS = 10
"""What has no numbers after so many never will."""
PATIENT = {"connect_timeout_s": PATIENCE_S}
PATIENT_SETTINGS = {
    "fleet": {"probe_timeout_s": PATIENCE_S},
    "upstream": {"prefill": PATIENT, "decode": PATIENT},
}
"""A worker that is short of CPU is not to be taken for a broken one."""
SHARED_DEADLINE_S = 5.0
"""Nor is the server of the shared state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """How much load, and how fast the engines run."""

    speed: float
    round_s: float
    """How long one round of load is."""
    mix: SyntheticMix
    """Per second of the engine; prompts share their beginnings soon enough for some to be cached."""
    agents: Plan
    """Those that resend their history, beside the mix."""
    rate_window_s: float
    is_cut: bool = False
    """What is shown ends as the last request arrives, and not with a fleet that has nothing left to do."""


QUICK = Scenario(
    speed=10.0,
    round_s=3.0,
    mix=SyntheticMix(rate_rps=1.5, isl_scale=0.5, gap_scale=0.1),
    agents=Plan(sessions=4, turns=(3, 4), think_s=(0.1, 0.3), output_tokens=(20, 40), ramp_s=0.5),
    rate_window_s=60.0,
)
"""For tests. The window is long, so that a rate has its two samples even where scrapes fail."""
REAL_TIME = Scenario(
    speed=1.0,
    round_s=180.0,
    mix=SyntheticMix(rate_rps=2.0, isl_scale=0.5, gap_scale=0.1),
    agents=Plan(
        sessions=12,
        turns=(3, 6),
        think_s=(1.0, 4.0),
        first_bytes=(8_000, 40_000),
        next_bytes=(200, 8_000),
        output_tokens=(60, 300),
        ramp_s=10.0,
    ),
    rate_window_s=15.0,
    is_cut=True,
)
"""For pictures: latencies are the engines' own, and the dashboards' default bounds hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """A fleet that has had its load, and what remembers it."""

    prometheus_url: str
    fleet: RunningFleet
    span: Span
    answers: Mapping[str, Answers]
    """To every dashboard, by its file's name."""

    def query(self, expr: str) -> list[dict[str, Any]]:
        """What an expression is now."""
        return instant(self.prometheus_url, expr)

    def pages(self) -> str:
        """What the gateway and its workers show a scrape."""
        urls = [self.fleet.url, *(worker["url"] for worker in self.fleet.workers)]
        return "\n".join(_get(f"{url}/metrics").text for url in urls)


def dashboard(name: str) -> dict[str, Any]:
    """A shipped dashboard by its file's name."""
    parsed: dict[str, Any] = json.loads((DIRECTORY / name).read_text())
    return parsed


def instant(prometheus_url: str, expr: str) -> list[dict[str, Any]]:
    """The series of an expression now."""
    result: list[dict[str, Any]] = _get(f"{prometheus_url}/api/v1/query", query=expr).json()["data"]["result"]
    return result


def until(holds: Callable[[], object], what: str) -> None:
    """Wait for it to hold."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline_s, f"in vain: {what}"
        time.sleep(POLL_S)


def _get(url: str, **params: str) -> httpx.Response:
    return httpx.get(url, params=params, trust_env=False, timeout=PATIENCE_S)


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
        pools=POOLS,
        engine=ENGINE,
        speed=scenario.speed,
        settings={
            **PATIENT_SETTINGS,
            "slo": {"default": {"ttft_s": 2.0 / scenario.speed, "tpot_s": 0.04 / scenario.speed}},
            # By load, so that conversations are remembered, and there is something to share.
            "routing": {"policy": "learned", "store": str(store.root), "conversation": {"pinning": "load"}},
            "telemetry": {"decision_log": str(directory / "decisions.jsonl")},
            "shared": {"url": shared.url, "deadline_s": SHARED_DEADLINE_S},
        },
    )
    with running_fleet(spec) as fleet, _running_prometheus(directory, fleet) as url:
        start_s = time.time()
        for number in range(MAX_ROUNDS):
            last_s = time.time() + scenario.round_s
            _send_load(fleet, scenario, number)
            _wait_for_scrapes(url, fleet, time.time())
            end_s = last_s if scenario.is_cut else time.time()
            span = Span(start_s=start_s, end_s=end_s, step_s=SCRAPE_S, rate_window_s=scenario.rate_window_s)
            answers = {name: ask(url, dashboard(name), span) for name in DASHBOARDS}
            if _shows_everything(answers):
                break
        yield Observed(prometheus_url=url, fleet=fleet, span=span, answers=answers)


def _shows_everything(answers: Mapping[str, Answers]) -> bool:
    """Whether every query has numbers, and every worker and both paths were chosen."""
    workers, paths = (last_values(answers, ROUTING, title) for title in (SELECTION_SHARE, PATH_MIX))
    is_answered = not any(any(without_numbers(name, found)) for name, found in answers.items())
    return is_answered and len(workers) == POOLS.prefill + POOLS.decode and len(paths) == 2


def last_values(answers: Mapping[str, Answers], name: str, title: str) -> dict[str, float | None]:
    """The newest number of every line of a panel, by its legend."""
    (panel,) = [panel for panel in dashboard(name)["panels"] if panel["title"] == title]
    return {series.name: series.last for found in answers[name][panel["id"]] for series in found}


def without_numbers(name: str, answers: Answers) -> Iterator[str]:
    """The queries of a dashboard that nothing is known for."""
    for panel in dashboard(name)["panels"]:
        for target, series in zip(panel["targets"], answers[panel["id"]], strict=True):
            if not any(math.isfinite(value) for line in series for value in line.values):
                yield f"{panel['title']}: {target['expr']}"


def _wait_for_scrapes(prometheus_url: str, fleet: RunningFleet, since_s: float) -> None:
    """Wait until everything that the gateway and its workers counted before then is known."""
    page = '{__name__=~"tidegate_build_info|vllm:num_requests_running"}'
    targets = 1 + len(fleet.workers)
    newer = f"count(timestamp({page}) > {since_s:f}) == {targets}"
    until(lambda: instant(prometheus_url, newer), "a scrape of every target")


def _priced_bundle(scenario: Scenario) -> Bundle:
    """Routes by price, at the pace of the scenario's clock; its lengths are guessed by one split of the prompt's."""
    costs = mispriced(fleet_costs(ENGINE, has_power=True), 1 / scenario.speed, 1 / scenario.speed)
    path = model_of(JointPolicy(baseline=DynamoRule()), costs)
    return new_bundle(path, output_length=predictor_files(leaves=USUAL_LENGTHS))


def _send_load(fleet: RunningFleet, scenario: Scenario, number: int) -> None:
    """One round: conversations that no round before had, and a request that is refused."""
    requests = round(scenario.mix.rate_rps * scenario.speed * scenario.round_s)
    trace = synthetic_trace(scenario.mix, requests, seed=3 + number)
    options = LoadOptions(
        url=fleet.openai_url,
        model=DEFAULT_MODEL,
        run_id=f"dashboards-{number}",
        seed=number,
        speed=scenario.speed,
    )
    agents = replace(scenario.agents, seed=number)
    assert uvloop.run(_failures(options, trace, fleet.url, agents)) == []
    unknown = {"model": "no-such-model", "messages": [{"role": "user", "content": "hello"}]}
    url = f"{fleet.openai_url}/chat/completions"
    assert httpx.post(url, json=unknown, trust_env=False, timeout=PATIENCE_S).status_code == 404


async def _failures(options: LoadOptions, trace: Sequence[TraceRequest], url: str, agents: Plan) -> list[str]:
    """What went wrong while the trace was sent and agents talked, until all was answered."""
    balancer = Balancer({"gateway": url}, timeout_s=PATIENCE_S)
    crowd = Crowd(balancer, agents, model=options.model)
    async with asyncio.TaskGroup() as group:
        group.create_task(crowd.run())
        records = await run_load(options, trace)
        crowd.end()
    balancer.close()
    return [error for each in (*records, *crowd.tried) if (error := each.error) is not None]


@contextlib.contextmanager
def _running_prometheus(directory: Path, fleet: RunningFleet) -> Iterator[str]:
    assert PROMETHEUS is not None
    config = directory / "prometheus.yml"
    config.write_text(yaml.safe_dump(scrape_config(fleet)))
    address = f"127.0.0.1:{free_port()}"
    arguments = [
        f"--config.file={config}",
        f"--storage.tsdb.path={directory / 'data'}",
        f"--web.listen-address={address}",
        "--log.level=warn",
    ]
    log = directory / "prometheus.log"
    with log.open("wb") as output, subprocess.Popen([PROMETHEUS, *arguments], stdout=output, stderr=output) as process:
        try:
            until(lambda: _is_ready(process, f"http://{address}/-/ready", log), "Prometheus is ready")
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


def _is_ready(process: subprocess.Popen[bytes], url: str, log: Path) -> bool:
    assert process.poll() is None, f"Prometheus did not start: {log.read_text()[-500:]}"
    with contextlib.suppress(httpx.TransportError):
        return _get(url).status_code == 200
    return False
