"""An emulated fleet behind a running gateway, as arms are compared on it.

The rule of this module: a lap is the same requests from an idle fleet to an idle fleet, with prompts that no cache has
seen. The gateway's clock is real, so it is given bounds, prices and intervals in real seconds; all that is told of it
is in engine seconds.
"""

import contextlib
import re
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path as FilePath
from typing import Any

import numpy as np

from gateway.core.engine_costs import EngineCosts
from gateway.core.forecast import FleetCosts
from gateway.core.types import Path, SloTarget
from loadtest.client.options import LoadOptions
from loadtest.compare.arms import Arm
from loadtest.compare.cells import Place
from loadtest.compare.priced_wrongly import mispriced
from loadtest.compare.serving import Served
from loadtest.fleet.fleet import FleetSpec, free_port, running_fleet
from loadtest.fleet.pools import parse_pools
from loadtest.learning.live import LiveEnvironment, LiveGateway
from loadtest.learning.prices import fleet_costs
from loadtest.traces.types import TraceRequest
from policy_store.learn.environment import ServedRow

SESSION_HEADER = "x-session-id"
SAMPLE_MAX_AGE_S = 10.0
"""In engine seconds, as the simulator's gateway has it; scrapes come once in one of them."""
LOOP_LAG = re.compile(rb'^tidegate_event_loop_lag_seconds\{stat="max"\} (\S+)$', re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lap:
    """How an arm served a lap, and how well the machine kept up with it."""

    served: Served
    sent_late_s: float
    """99th percentile of how late the client sent, in real seconds."""
    loop_late_s: float
    """The most that the gateway's event loop was late, in real seconds."""


class LiveLaps:
    """Serves the same requests over and over, by one arm after the other."""

    def __init__(self, environment: LiveEnvironment, requests: int, gateway_url: str) -> None:
        self._environment = environment
        self._requests = requests
        self._metrics = f"{gateway_url}/metrics"

    def serve(self, arm: Arm) -> Lap:
        """A lap by an arm.

        Raises:
            LiveError: the gateway refused the arm, or does not log what it serves.
        """
        first = self._environment.served
        rows = self._environment.serve_with(routing_beneath(arm), arm.path, self._requests)
        rows += self._environment.finish()
        lags_s = self._environment.take_lags()
        return Lap(
            served=served_of(rows, first, self._requests),
            sent_late_s=float(np.quantile(lags_s, 0.99)) if lags_s else 0.0,
            loop_late_s=self._loop_late_s(),
        )

    def _loop_late_s(self) -> float:
        """The gateway tells the most since it was last asked."""
        with urllib.request.urlopen(self._metrics, timeout=10.0) as page:  # noqa: S310 (our own loopback URL)
            found = LOOP_LAG.search(page.read())
        return float(found[1]) if found else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveStand:
    """A running fleet and its gateway."""

    gateway: LiveGateway
    url: str

    @contextlib.contextmanager
    def laps(self, name: str, requests: Sequence[TraceRequest], seed: int) -> Iterator[LiveLaps]:
        """Laps of some requests; another name and seed gives other request ids and prompts."""
        with self.environment(name, requests, seed) as environment:
            yield LiveLaps(environment, len(requests), self.url)

    def environment(self, name: str, requests: Sequence[TraceRequest], seed: int) -> LiveEnvironment:
        """The same requests without an end, for a learner that serves as it likes."""
        load = replace(self.gateway.load, run_id=name, seed=seed)
        return LiveEnvironment(replace(self.gateway, load=load), requests)


@contextlib.contextmanager
def running_stand(place: Place, speed: float, directory: FilePath) -> Iterator[LiveStand]:
    """A place's fleet as processes on loopback, its books and caches empty; ended on the way out.

    Args:
        place: whose fleet.
        speed: engine seconds per real second.
        directory: for the decision log and the bundles that the gateway is given.

    Raises:
        FleetError: a part of it did not start.
    """
    bundles, log = directory / "bundles", directory / "decisions.jsonl"
    bundles.mkdir(parents=True, exist_ok=True)
    log.unlink(missing_ok=True)
    port = free_port()
    spec = FleetSpec(
        pools=parse_pools(place.pools),
        engine=place.engine,
        speed=speed,
        settings=gateway_settings(place.slo, speed, admin_port=port, log=log),
    )
    with running_fleet(spec) as fleet:
        load = LoadOptions(
            url=fleet.openai_url, model=spec.model, run_id="live", speed=speed, session_header=SESSION_HEADER
        )
        gateway = LiveGateway(
            load=load,
            admin_url=f"http://127.0.0.1:{port}",
            decision_log=log,
            bundles=bundles,
            slo=place.slo,
            costs=in_real_seconds(fleet_costs(place.engine), speed),
        )
        yield LiveStand(gateway=gateway, url=fleet.url)


def gateway_settings(slo: SloTarget, speed: float, *, admin_port: int, log: FilePath) -> Mapping[str, Any]:
    """The gateway's settings: what passes in an engine second takes 1 / speed real ones."""
    bounds = {
        name: None if bound_s is None else bound_s / speed
        for name, bound_s in (("ttft_s", slo.ttft_s), ("tpot_s", slo.tpot_s))
    }
    return {
        "admin": {"port": admin_port},
        "slo": {"default": bounds},
        "fleet": {"scrape_interval_s": 1.0 / speed, "sample_max_age_s": SAMPLE_MAX_AGE_S / speed},
        "telemetry": {"decision_log": str(log.resolve()), "request_log": False},
    }


def routing_beneath(arm: Arm) -> Mapping[str, Any]:
    """How the gateway places requests under an arm."""
    return {
        "conversation": {"headers": [SESSION_HEADER]},
        "prefill_weights": dict(arm.placing.prefill.weights),
        "decode_weights": dict(arm.placing.decode.weights),
    }


def in_real_seconds(costs: FleetCosts, speed: float) -> FleetCosts:
    """Engine prices as a gateway sees them whose workers run so many times faster than the clock."""
    priced = mispriced(costs, 1.0 / speed, 1.0 / speed)
    return FleetCosts(
        prefill=_intake_and_transfer(priced.prefill, speed), decode=_intake_and_transfer(priced.decode, speed)
    )


def served_of(rows: Sequence[ServedRow], first: int, requests: int) -> Served:
    """The figures of the requests from the `first` order on; one without a row was never answered."""
    ttft_s = np.full(requests, np.inf)
    tpot_s = np.full(requests, np.inf)
    met, local = np.zeros(requests, dtype=bool), np.zeros(requests, dtype=bool)
    for row in rows:
        place = row.order - first
        if not 0 <= place < requests:
            continue
        local[place] = row.path is Path.LOCAL
        if row.ok and row.ttft_s is not None:
            ttft_s[place] = row.ttft_s
            tpot_s[place] = np.nan if row.tpot_s is None else row.tpot_s
            met[place] = bool(row.attained)
    return Served(ttft_s=ttft_s, tpot_s=tpot_s, met=met, local=local)


def _intake_and_transfer(costs: EngineCosts, speed: float) -> EngineCosts:
    return replace(
        costs,
        intake_s=costs.intake_s / speed,
        intake_token_s=costs.intake_token_s / speed,
        transfer_latency_s=costs.transfer_latency_s / speed,
        transfer_token_s=costs.transfer_token_s / speed,
    )
