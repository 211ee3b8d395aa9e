"""One run of one arm, and its figures by conversation.

The rule of this module: a run serves all of its conversations from an empty fleet to an empty fleet, and follows from
its task alone. A conversation without an effective token waited for it without end.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from gateway.core.types import Role
from loadtest.conserve.arms import SLO, Arm, Place
from loadtest.conserve.traffic import SOURCES, Talk
from loadtest.engine.engine import Engine
from loadtest.fleet.pools import Pools
from loadtest.learning.simulated import outcomes
from loadtest.report.conversations import ConversationRecord, conversations
from loadtest.simulator.flight import Flight
from loadtest.simulator.host import Run, Simulation
from loadtest.simulator.records import to_records


class Served(msgspec.Struct, frozen=True, kw_only=True):
    """A run; lists are by conversation, in order of their beginning. All times in seconds."""

    ttfet_s: list[float]
    """Time to first effective token, without the pauses before it; infinite where there was none."""
    last_tbt_s: list[float]
    """Mean gap between the tokens of the last turn; NaN where it has under two, infinite where it was not answered."""
    transfers: list[int]
    met: list[int]
    """Turns that met the SLO."""
    turns: list[int]
    energy_j: float
    """Of all GPUs from the first arrival to the last token, as modelled."""
    prefill_busy: float
    """Share of that time, over the prefill workers; 0 where there is none."""
    decode_busy: float
    ttft_p95_s: float
    """Of all turns."""
    local_ratio: float
    cached_ratio: float
    """Of all prompt tokens, found in a cache of the engine that prefilled."""
    duration_s: float
    live_kv_tokens: float
    """Of all conversations that had begun and had not ended, while the second half of them began: the mean."""

    @property
    def attained_ratio(self) -> float:
        """Of all turns."""
        return sum(self.met) / sum(self.turns)

    @property
    def energy_per_conversation_j(self) -> float:
        """Idle and busy."""
        return self.energy_j / len(self.turns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One run."""

    place: Place
    talk: Talk
    arm: Arm

    @property
    def key(self) -> str:
        """All that the run depends on but code and files."""
        talk = self.talk
        source = SOURCES[talk.workload]
        told = (source.spec(talk.data), source.max_turns, source.max_pause_s, talk.sessions, talk.rate_rps, talk.seed)
        return repr((self.place.pools, self.place.kv_share, told, self.arm.key))

    def run(self) -> Served:
        """Serve."""
        fleet = self.arm.fleet(self.place)
        engines = fleet.engines()
        driver = self.talk.load().driver()
        dispatcher = fleet.dispatcher(self.arm.policy(), driver.requests, seed=self.talk.seed)
        run = Simulation(engines, dispatcher, driver, scrape=fleet.scrape).run()
        return _served(run, conversations(driver.requests, to_records(run)), engines, fleet.pools)


def _served(run: Run, found: Sequence[ConversationRecord], engines: Sequence[Engine], pools: Pools) -> Served:
    ttft_s, _, met = outcomes(run.flights, SLO)
    met_of: dict[str | None, int] = {}
    for flight, is_met in zip(run.flights, met.tolist(), strict=True):
        name = flight.request.conversation
        met_of[name] = met_of.get(name, 0) + is_met
    busy = [engine.snapshot(run.until_s).busy_s / run.until_s for engine in engines]
    prefills = [share for share, (_, role) in zip(busy, pools.roles(), strict=True) if role is Role.PREFILL]
    prompt_tokens = sum(flight.request.input_tokens for flight in run.flights)
    return Served(
        ttfet_s=[_ttfet_s(one) for one in found],
        last_tbt_s=[_last_tbt_s(one) for one in found],
        transfers=[one.transfers for one in found],
        met=[met_of[one.conversation] for one in found],
        turns=[one.turns_expected for one in found],
        energy_j=sum(run.energy_j),
        prefill_busy=sum(prefills) / len(prefills) if prefills else 0.0,
        decode_busy=sum(busy[len(prefills) :]) / (len(busy) - len(prefills)),
        ttft_p95_s=float(np.quantile(ttft_s, 0.95)),
        local_ratio=1.0 - sum(one.transfers for one in found) / len(run.flights),
        cached_ratio=sum(flight.cached_tokens for flight in run.flights) / prompt_tokens,
        duration_s=run.until_s,
        live_kv_tokens=_live_kv_tokens(run.flights),
    )


def _live_kv_tokens(flights: Sequence[Flight]) -> float:
    """A turn's prompt and answer count from its arrival until the next turn of its conversation has come."""
    turns: dict[str | None, list[Flight]] = {}
    for flight in flights:
        turns.setdefault(flight.request.session, []).append(flight)
    until_s = max(own[0].arrived_s for own in turns.values())
    from_s, held = until_s / 2, 0.0
    for own in turns.values():
        ends_s = [*(flight.arrived_s for flight in own[1:]), own[-1].ended_s or until_s]
        for flight, end_s in zip(own, ends_s, strict=True):
            seconds = min(end_s, until_s) - max(flight.arrived_s, from_s)
            held += max(0.0, seconds) * (flight.request.input_tokens + flight.request.output_tokens)
    return held / (until_s - from_s)


def _ttfet_s(one: ConversationRecord) -> float:
    if one.ttfet_s is None or one.ttfet_think_s is None:
        return math.inf
    return one.ttfet_s - one.ttfet_think_s


def _last_tbt_s(one: ConversationRecord) -> float:
    if one.last_tpot_s is not None:
        return one.last_tpot_s
    return math.nan if one.ok else math.inf


def throughput(task: Task) -> float:
    """Answers per second that end in the second half of the time in which conversations begin."""
    workload = task.talk.load()
    until_s = workload.sessions[-1].start_s
    fleet, driver = task.arm.fleet(task.place), workload.driver()
    dispatcher = fleet.dispatcher(task.arm.policy(), driver.requests, seed=task.talk.seed)
    run = Simulation(fleet.engines(), dispatcher, driver, scrape=fleet.scrape).run(until_s)
    ended = sum(flight.ended_s is not None and flight.ended_s > until_s / 2 for flight in run.flights)
    return ended / (until_s / 2)
