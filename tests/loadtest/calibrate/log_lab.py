"""Decision logs of a simulated fleet whose true prices are known."""

from dataclasses import replace
from random import Random

import msgspec

from gateway.core.step_cost import CostTable
from gateway.core.types import Decision, Outcome, OutcomeKind, WorkerId, WorkerSpec
from gateway.policies import build_policy
from gateway.settings import load_settings
from gateway.wire.decision_record import DecisionRecord
from loadtest.engine.engine import Engine
from loadtest.engine.types import EngineSpec
from loadtest.fleet.pools import parse_pools
from loadtest.simulator.dispatch import CoreDispatcher
from loadtest.simulator.flight import Flight
from loadtest.simulator.host import ScrapePlan, Simulation
from loadtest.traces.types import TraceRequest
from loadtest.traces.workload import Workload

BEGIN_S = 1.8e9
SETTINGS = ("routing.policy=llmd", "routing.llmd.non_cached_tokens=1500")


def workload(requests: int, rate_rps: float, seed: int) -> Workload:
    """Poisson arrivals of short and long prompts, none like another."""
    rng = Random(seed)
    at_s, made = 0.0, []
    for index in range(requests):
        at_s += rng.expovariate(rate_rps)
        tokens = rng.choice((rng.randint(100, 900), rng.randint(2000, 6000)))
        blocks = range(100 * index, 100 * index + -(-tokens // 64))
        made.append(
            TraceRequest(
                index=index,
                arrival_s=at_s,
                input_tokens=tokens,
                output_tokens=rng.randint(20, 120),
                hash_ids=tuple(blocks),
                block_tokens=64,
            )
        )
    return Workload(requests=tuple(made))


def simulated_log(
    spec: EngineSpec, table: CostTable, *, requests: int = 200, rate_rps: float = 1.0, seed: int = 0, speed: float = 1.0
) -> list[DecisionRecord]:
    """What a gateway before one prefill and one decode worker would have logged, `speed` times as fast."""
    pools = parse_pools("1P1D")
    workers = [
        WorkerSpec(worker_id=WorkerId(name), url=f"http://{name}", role=role, models=("m",), kv_block_tokens=64)
        for name, role in pools.roles()
    ]
    policy = build_policy(load_settings(overrides=list(SETTINGS)))
    dispatcher = CoreDispatcher(policy, workers, model="m", seed=0)
    engines = [Engine(spec, table, tells_every_token=False) for _ in workers]
    run = Simulation(engines, dispatcher, workload(requests, rate_rps, seed).driver(), scrape=ScrapePlan()).run()
    return [record(flight, flight.decision, speed) for flight in run.flights if flight.decision is not None]


def record(flight: Flight, decision: Decision, speed: float) -> DecisionRecord:
    assert flight.ended_s is not None
    assert flight.ttft_s is not None
    outcome = Outcome(
        kind=OutcomeKind.OK,
        status=200,
        duration_s=(flight.ended_s - flight.arrived_s) / speed,
        ttft_s=flight.ttft_s / speed,
        tpot_s=None if flight.tpot_s is None else flight.tpot_s / speed,
        input_tokens=flight.request.input_tokens,
        cached_tokens=flight.cached_tokens,
        output_tokens=flight.request.output_tokens,
    )
    return DecisionRecord(
        request_id=str(flight.request.index),
        arrived_at_s=BEGIN_S + flight.arrived_s / speed,
        model="m",
        decision=decision,
        outcome=outcome,
    )


def failed(record: DecisionRecord) -> DecisionRecord:
    """The same request, broken off by its worker."""
    outcome = replace(record.outcome, kind=OutcomeKind.UPSTREAM_ERROR, ttft_s=None, tpot_s=None, output_tokens=None)
    return msgspec.structs.replace(record, outcome=outcome)
