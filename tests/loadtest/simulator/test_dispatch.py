from dataclasses import replace
from typing import Any

import pytest

from gateway.core.conversation.rules import ConversationRules, Mode
from gateway.core.events import Dispatched, Event, Finished, FirstToken, Prefilled, WorkerSampled
from gateway.core.path.rules import AlwaysLocal, AlwaysRemote
from gateway.core.policy import Policy
from gateway.core.types import OutcomeKind, Role, SloDefaults, SloTarget, WorkerId, WorkerSpec
from loadtest.simulator.dispatch import CoreDispatcher, path_of
from loadtest.simulator.flight import NOWHERE
from loadtest.simulator.host import Run, ScrapePlan, Simulation
from loadtest.traces.types import TraceRequest
from tests.loadtest.engine.engine_lab import SPEC
from tests.loadtest.simulator.simulator_lab import ListLoad, lab_engines, request

REMOTE = Policy(path=AlwaysRemote(), slo=SloDefaults(default=SloTarget(name="default", ttft_s=5.0, tpot_s=2.0)))
LOCAL = replace(REMOTE, path=AlwaysLocal())
PAIR = {"prefill-0": Role.PREFILL, "decode-0": Role.DECODE}


class Fleet:
    """Lab engines behind the core; `told` is what the core heard, workers that came up left out."""

    def __init__(self, policy: Policy, roles: dict[str, Role], *, run_id: str | None = None) -> None:
        workers = [
            WorkerSpec(
                worker_id=WorkerId(name),
                url=f"http://{name}",
                role=role,
                models=("lab",),
                kv_block_tokens=SPEC.block_tokens,
                kv_total_blocks=SPEC.total_blocks,
            )
            for name, role in roles.items()
        ]
        self.engines = lab_engines(len(workers))
        self.dispatcher = CoreDispatcher(policy, workers, model="lab", seed=0, run_id=run_id)
        self.router = self.dispatcher.router
        self.told: list[Event] = []
        observe = self.router.observe

        def hear(event: Event) -> None:
            self.told.append(event)
            observe(event)

        self.router.observe = hear  # type: ignore[method-assign]

    def run(self, *requests: TraceRequest, scrape: ScrapePlan | None = None) -> Run:
        return Simulation(self.engines, self.dispatcher, ListLoad(requests), scrape=scrape).run()

    def stages(self) -> list[tuple[type[Event], float]]:
        return [(type(event), event.at_s) for event in self.told]


def test_the_core_hears_of_a_remote_request_when_a_gateway_would() -> None:
    fleet = Fleet(REMOTE, PAIR)
    run = fleet.run(request(0, at_s=1.0, output=3))
    assert fleet.stages() == [(Dispatched, 1.0), (Prefilled, 2.0), (FirstToken, 5.5), (Finished, 7.5)]
    assert path_of(run.flights[0]) == "remote"
    assert len(fleet.router.ledger) == 0


def test_the_core_hears_of_a_local_request_when_a_gateway_would() -> None:
    fleet = Fleet(LOCAL, PAIR)
    run = fleet.run(request(0, at_s=1.0, output=3))
    assert fleet.stages() == [(Dispatched, 1.0), (FirstToken, 2.0), (Finished, 4.0)]
    assert path_of(run.flights[0]) == "local"
    assert len(fleet.router.ledger) == 0


def test_the_outcome_says_how_it_went() -> None:
    fleet = Fleet(REMOTE, PAIR)
    fleet.run(request(0, output=3, hash_ids=(1, 2)), request(1, at_s=10.0, output=3, hash_ids=(1, 2)))
    first, second = [event.outcome for event in fleet.told if isinstance(event, Finished)]
    assert (first.kind, first.status) == (OutcomeKind.OK, 200)
    assert (first.duration_s, first.ttft_s, first.tpot_s) == (6.5, 4.5, 1.0)
    assert (first.input_tokens, first.cached_tokens, first.output_tokens) == (8, 0, 3)
    assert first.attained is True
    # Of a prompt that is known whole the last block is computed again.
    assert second.cached_tokens == 4


@pytest.mark.parametrize(("ttft_s", "attained"), [(4.5, True), (4.4, False)])
def test_the_slo_is_that_of_the_policy(ttft_s: float, attained: bool) -> None:
    target = SloTarget(name="default", ttft_s=ttft_s, tpot_s=None)
    fleet = Fleet(replace(REMOTE, slo=SloDefaults(default=target)), PAIR)
    fleet.run(request(0, output=3))
    (finished,) = [event for event in fleet.told if isinstance(event, Finished)]
    assert finished.outcome.attained is attained


def test_a_rejected_prompt_is_a_failure_and_gives_back_what_it_held() -> None:
    fleet = Fleet(REMOTE, PAIR)
    run = fleet.run(request(0, prompt=401))
    (finished,) = [event for event in fleet.told if isinstance(event, Finished)]
    assert (finished.outcome.kind, finished.outcome.status) == (OutcomeKind.UPSTREAM_ERROR, 500)
    assert finished.outcome.attained is False
    assert run.flights[0].error is not None
    assert len(fleet.router.ledger) == 0


def test_a_refused_request_goes_nowhere() -> None:
    fleet = Fleet(REMOTE, {"prefill-0": Role.PREFILL})
    (flight,) = fleet.run(request(0, at_s=3.0)).flights
    assert flight.error == "refused: no_decode_worker"
    assert (flight.prefill_engine, flight.decode_engine, flight.ended_s) == (NOWHERE, NOWHERE, 3.0)
    assert path_of(flight) is None
    assert fleet.told == []


def test_the_core_counts_the_tokens_and_blocks_of_the_trace() -> None:
    fleet = Fleet(LOCAL, PAIR)
    shared = (1, 2, 3)
    run = fleet.run(request(0, prompt=11, hash_ids=shared), request(1, at_s=5.0, prompt=11, hash_ids=shared))
    first, second = [flight.decision for flight in run.flights]
    assert first is not None
    assert second is not None
    assert (first.features.isl_tokens, first.decode_hit_tokens) == (11, 0)
    # Two full blocks; the third of the ids stands for a part of one.
    assert (second.features.isl_tokens, second.decode_hit_tokens) == (11, 8)


def test_turns_of_a_session_stay_on_their_decode_worker() -> None:
    fleet = Fleet(LOCAL, {f"decode-{number}": Role.DECODE for number in range(8)})
    run = fleet.run(*(request(number, session="s") for number in range(6)))
    assert len({flight.decode_engine for flight in run.flights}) == 1
    assert all(flight.decision is not None and flight.decision.pinned for flight in run.flights)


CONSERVE = replace(
    REMOTE,
    conversation=ConversationRules(
        mode=Mode.CONSERVE, headroom_tokens=335, idle_ttl_s=3.0, evict_after_s=None, max_wait_s=30.0
    ),
)
"""The lab's engines hold 400 tokens: a conversation at a time."""


def turn(index: int, session: str, number: int = 0, **changes: Any) -> TraceRequest:
    return replace(request(index, session=session, **changes), turn=number)


def test_a_conversation_has_one_transfer_and_its_later_turns_prefill_at_home() -> None:
    fleet = Fleet(CONSERVE, PAIR)
    run = fleet.run(*(turn(number, "a", number, at_s=10.0 * number) for number in range(3)))
    assert [path_of(flight) for flight in run.flights] == ["remote", "local", "local"]


def test_a_new_conversation_waits_in_the_fleet_until_there_is_room() -> None:
    fleet = Fleet(CONSERVE, PAIR)
    run = fleet.run(turn(0, "a"), turn(1, "b", at_s=0.5), scrape=ScrapePlan(interval_s=1.0))
    first, second = run.flights
    assert first.ended_s is not None
    assert second.ttft_s is not None
    # The first one is forgotten 3 s after its end, with the next scrape; then the second one takes 4.5 s.
    assert first.ended_s + 3.0 - 0.5 + 4.5 <= second.ttft_s <= first.ended_s + 4.0 - 0.5 + 4.5
    assert second.error is None
    assert len(fleet.router.ledger) == 0
    assert len(fleet.router.waiting) == 0


def test_ties_are_broken_by_the_ids_of_the_run() -> None:
    roles = {f"decode-{number}": Role.DECODE for number in range(4)}
    # Far apart, so that each finds all workers alike.
    requests = [request(number, at_s=10.0 * number) for number in range(20)]

    def places(run_id: str | None) -> list[int]:
        return [flight.decode_engine for flight in Fleet(LOCAL, roles, run_id=run_id).run(*requests).flights]

    assert places("one") == places("one")
    assert places("one") != places("two")
    assert len(set(places(None))) == 4


def test_a_scrape_reaches_the_core_as_a_sample() -> None:
    fleet = Fleet(LOCAL, PAIR)
    fleet.run(request(0, prompt=16, output=4), scrape=ScrapePlan(interval_s=1.5))
    sampled = [event for event in fleet.told if isinstance(event, WorkerSampled)]
    assert [(event.at_s, event.worker_id) for event in sampled] == [
        (1.5, "prefill-0"),
        (1.5, "decode-0"),
        (3.0, "prefill-0"),
        (3.0, "decode-0"),
    ]
    busy = sampled[1].sample
    assert (busy.at_s, busy.running, busy.waiting, busy.kv_used_ratio) == (1.5, 1, 0, 0.05)
    assert sampled[0].sample.running == 0
