"""Whatever is asked of whatever fleet, every request ends once and nothing is left behind."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.path.base import PathPolicy
from gateway.core.path.rules import AlwaysLocal, AlwaysRemote, DynamoRule, LlmdRule
from gateway.core.policy import Policy
from gateway.core.types import Role, WorkerId, WorkerSpec
from loadtest.engine.engine import Engine
from loadtest.simulator.dispatch import CoreDispatcher
from loadtest.simulator.host import ScrapePlan, Simulation
from loadtest.simulator.records import to_records
from loadtest.traces.sessions import Session, Turn
from loadtest.traces.types import TraceRequest
from loadtest.traces.workload import Workload
from tests.loadtest.engine.engine_lab import SPEC
from tests.loadtest.simulator.simulator_lab import lab_engines

POLICIES: list[PathPolicy] = [
    AlwaysLocal(),
    AlwaysRemote(),
    DynamoRule(eff_isl_threshold=12),
    LlmdRule(non_cached_tokens=8),
]
ROLES = st.lists(st.sampled_from(list(Role)), min_size=1, max_size=5)
TOKENS = st.integers(1, 48)
IDS = st.lists(st.integers(0, 3), max_size=4).map(lambda ids: tuple(at * 10 + name for at, name in enumerate(ids)))
LIMITS = st.fixed_dictionaries(
    {
        # Of the longest requests some fit no such cache.
        "total_blocks": st.integers(10, 40),
        "max_batched_tokens": st.integers(5, 40),
        "max_running": st.integers(1, 5),
        "plans_ahead": st.booleans(),
        "transfers_share_link": st.booleans(),
        "hold_lease_s": st.sampled_from([3.0, 100.0]),
        "intake_s": st.sampled_from([0.0, 0.25]),
    }
)
SCRAPES = st.one_of(
    st.none(), st.builds(ScrapePlan, interval_s=st.sampled_from([0.5, 3.0]), age_s=st.sampled_from([0.0, 2.0]))
)


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    arrivals = sorted(draw(st.lists(st.integers(0, 20).map(lambda half: half / 2), max_size=12)))
    requests = tuple(
        TraceRequest(
            index=index,
            arrival_s=at_s,
            input_tokens=draw(TOKENS),
            output_tokens=draw(st.integers(1, 8)),
            hash_ids=draw(IDS),
            block_tokens=4,
        )
        for index, at_s in enumerate(arrivals)
    )
    turns = st.builds(
        Turn,
        input_tokens=TOKENS,
        output_tokens=st.integers(1, 8),
        hash_ids=IDS,
        think_s=st.sampled_from([0.0, 1.0, 7.5]),
    )
    starts = sorted(draw(st.lists(st.sampled_from([0.0, 1.0, 9.0]), max_size=3)))
    sessions = tuple(
        Session(
            id=f"s{number}",
            start_s=at_s,
            turns=tuple(draw(st.lists(turns, min_size=1, max_size=4))),
            block_tokens=4,
        )
        for number, at_s in enumerate(starts)
    )
    return Workload(requests=requests, sessions=sessions)


class Case:
    """One fleet with its core, and a workload."""

    def __init__(
        self, workload: Workload, roles: list[Role], path: PathPolicy, limits: dict[str, Any], scrape: ScrapePlan | None
    ) -> None:
        workers = [
            WorkerSpec(
                worker_id=WorkerId(f"worker-{number}"),
                url="http://worker",
                role=role,
                models=("lab",),
                kv_block_tokens=SPEC.block_tokens,
                kv_total_blocks=limits["total_blocks"],
                max_batched_tokens=limits["max_batched_tokens"],
            )
            for number, role in enumerate(roles)
        ]
        self.engines: list[Engine] = lab_engines(len(roles), **limits)
        self.dispatcher = CoreDispatcher(Policy(path=path), workers, model="lab", seed=0)
        self.driver = workload.driver()
        self.simulation = Simulation(self.engines, self.dispatcher, self.driver, scrape=scrape)


@settings(max_examples=60, deadline=None)
@given(workloads(), ROLES, st.sampled_from(POLICIES), LIMITS, SCRAPES)
def test_a_drained_run_has_ended_every_request_and_holds_nothing(
    workload: Workload, roles: list[Role], path: PathPolicy, limits: dict[str, Any], scrape: ScrapePlan | None
) -> None:
    case = Case(workload, roles, path, limits, scrape)
    run = case.simulation.run()
    records = to_records(run)
    asked = sorted(request.index for request in case.driver.requests)
    assert sorted(record.index for record in records) == asked
    assert all(record.ok or record.error_kind in ("refused", "http_400") for record in records)
    assert all(flight.first_token_s is not None for flight in run.flights if flight.error is None)
    if not any(role.decodes for role in roles):
        assert all(record.error_kind == "refused" for record in records)
    assert len(case.dispatcher.router.ledger) == 0
    for engine in case.engines:
        left = engine.snapshot()
        assert (left.running, left.waiting, left.kv_used_ratio) == (0, 0, 0.0)
        assert engine.next_event_at_s() is None


@settings(max_examples=40, deadline=None)
@given(workloads(), ROLES, st.sampled_from(POLICIES), LIMITS, SCRAPES, st.integers(0, 60))
def test_until_splits_arrivals_into_ended_and_in_flight(
    workload: Workload,
    roles: list[Role],
    path: PathPolicy,
    limits: dict[str, Any],
    scrape: ScrapePlan | None,
    half_seconds: int,
) -> None:
    case = Case(workload, roles, path, limits, scrape)
    until_s = half_seconds / 2
    run = case.simulation.run(until_s)
    completed = [flight for flight in run.flights if flight.ended_s is not None and flight.error is None]
    failed = [flight for flight in run.flights if flight.error is not None]
    in_flight = [flight for flight in run.flights if flight.ended_s is None]
    assert len(run.flights) == len(completed) + len(failed) + len(in_flight)
    assert len(case.dispatcher.router.ledger) == len(in_flight)
    assert sum(record.cancelled for record in to_records(run)) == len(in_flight)
    assert all(flight.arrived_s <= until_s for flight in run.flights)
    open_loop = [request for request in case.driver.requests if request.session is None]
    due = {request.index for request in open_loop if request.arrival_s <= until_s}
    assert due <= {flight.request.index for flight in run.flights}
