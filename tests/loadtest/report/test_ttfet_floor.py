from dataclasses import replace
from itertools import islice

import pytest

from gateway.core.engine_costs import EngineCosts
from gateway.core.step_cost import AttentionTerms, CostTable, Curve
from loadtest.engine.engine import Engine
from loadtest.engine.presets import load_engine
from loadtest.report.conversations import conversations
from loadtest.report.ttfet_floor import ttfet_floor_s
from loadtest.simulator.host import Run, Simulation
from loadtest.simulator.records import to_records
from loadtest.traces.rescale import scaled_session
from loadtest.traces.sessions import Session, Turn
from loadtest.traces.synthetic_sessions import CLAUDE_CODE, session_trace
from loadtest.traces.workload import Workload
from policy_store.costs.engine import engine_costs
from tests.loadtest.simulator.simulator_lab import RouteByIndex

FREE = AttentionTerms(
    launch_s=0.0,
    prefill_sequence_s=0.0,
    prefill_token_s=0.01,
    prefill_pair_s=0.0,
    decode_sequence_s=0.0,
    kv_token_s=0.0,
)
COSTS = EngineCosts(
    table=CostTable(
        name="hand",
        step_overhead_s=1.0,
        tokens=Curve((1, 2), (0.0, 0.0)),
        sequences=Curve((1, 2), (0.0, 0.0)),
        attention=FREE,
    ),
    max_batched_tokens=1_000,
    intake_s=0.5,
)
"""A step takes a second, a hundredth more per new prompt token; a request is half a second on its way."""


def turn(tokens: int, ids: tuple[int, ...], output: int = 3, think_s: float = 0.0, **more: object) -> Turn:
    return Turn(input_tokens=tokens, output_tokens=output, hash_ids=ids, think_s=think_s, **more)  # type: ignore[arg-type]


def session(*turns: Turn, name: str = "s", start_s: float = 0.0) -> Session:
    return Session(id=name, start_s=start_s, turns=turns, block_tokens=100)


CALL = turn(200, (1, 2), think_s=4.0, is_visible=False)


def test_an_answer_at_once_costs_its_prefill() -> None:
    assert ttfet_floor_s(session(turn(200, (1, 2)), turn(300, (1, 2, 3))), COSTS) == 0.5 + 1.0 + 2.0


def test_calls_of_tools_count_with_all_that_they_take() -> None:
    # The call: prefill 3.5 s, two more tokens, 4 s of the tool. The answer: 150 of 350 tokens are new.
    assert ttfet_floor_s(session(CALL, turn(350, (1, 2, 3))), COSTS) == pytest.approx(3.5 + 2.0 + 4.0 + 0.5 + 1.0 + 1.5)


def test_a_prompt_goes_on_from_any_earlier_one() -> None:
    other = turn(100, (7,), think_s=1.0, is_visible=False)
    floor_s = ttfet_floor_s(session(CALL, other, turn(300, (1, 2, 3))), COSTS)
    assert floor_s == pytest.approx(9.5 + (0.5 + 2.0 + 2.0 + 1.0) + (0.5 + 2.0))


def test_an_equal_prompt_still_computes_its_last_block() -> None:
    assert ttfet_floor_s(session(CALL, turn(200, (1, 2))), COSTS) == pytest.approx(9.5 + 0.5 + 2.0)


def test_what_was_warm_before_is_not_computed() -> None:
    assert ttfet_floor_s(session(turn(250, (1, 2))), COSTS, warm_ids={1}) == pytest.approx(0.5 + 1.0 + 1.5)


def test_the_slowest_sub_agent_is_waited_for() -> None:
    quick = session(turn(100, (1,)), name="s/1", start_s=1.0)
    slow = session(turn(100, (8,), think_s=2.0), turn(200, (8, 9), think_s=5.0), name="s/2")
    found = ttfet_floor_s(session(replace(CALL, agents=(quick, slow)), turn(300, (1, 2, 3))), COSTS)
    slow_s = (0.5 + 2.0 + 2.0 + 2.0) + (0.5 + 2.0 + 2.0 + 5.0)
    assert found == pytest.approx(3.5 + 2.0 + slow_s + 4.0 + 0.5 + 2.0)


def test_the_last_turn_is_what_the_user_waited_for() -> None:
    hidden = replace(turn(300, (1, 2, 3)), is_visible=False)
    assert ttfet_floor_s(session(CALL, hidden), COSTS) == pytest.approx(9.5 + 0.5 + 2.0)


def test_prompts_longer_than_a_step_take_several() -> None:
    assert ttfet_floor_s(session(turn(2_500, ())), COSTS) == pytest.approx(0.5 + 3.0 + 25.0)


def test_a_session_has_turns() -> None:
    with pytest.raises(ValueError, match="no turns"):
        ttfet_floor_s(session(), COSTS)


def alone(one: Session, engines: list[Engine]) -> Run:
    load = Workload(sessions=(one,)).driver()
    routes = RouteByIndex({request.index: (None, 0) for request in load.requests})
    return Simulation(engines, routes, load).run()


def test_an_engine_that_serves_one_session_alone_is_at_the_floor() -> None:
    limits, table = load_engine("h100-llama8b")
    limits = replace(limits, intake_s=0.003, intake_token_s=1e-7)
    tested = 0
    for given in islice(session_trace(CLAUDE_CODE, seed=5), 40):
        one = scaled_session(replace(given, start_s=0.0, turns=given.turns[:8]), 0.1)
        if one.turns[0].is_visible or any(turn.agents for turn in one.turns):
            continue
        run = alone(one, [Engine(limits, table, tells_every_token=False)])
        (found,) = conversations(Workload(sessions=(one,)).flattened(), to_records(run))
        assert found.ttfet_s == pytest.approx(ttfet_floor_s(one, engine_costs(limits, table)), rel=1e-9)
        tested += 1
    assert tested >= 3
