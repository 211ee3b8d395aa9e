from dataclasses import fields, replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.step_cost import AttentionTerms, CostTable, Curve, StepWork
from loadtest.engine.engine import Engine
from loadtest.engine.power import GPU_POWER, PowerModel, Usage, capped
from loadtest.engine.presets import ENGINES, UnknownEngine, load_engine, power_model
from loadtest.engine.scheduler import Scheduler
from loadtest.engine.types import EngineEvent, EngineRequest
from policy_store.costs.file import load_cost_table
from tests.loadtest.engine.engine_lab import SPEC

POWER = PowerModel(idle_w=10.0, decode_w=100.0, prefill_w=200.0, tdp_w=250.0)
COSTS = CostTable(
    name="lab",
    step_overhead_s=1.0,
    tokens=Curve((1, 1024), (0.0, 0.0)),
    sequences=Curve((1, 1024), (0.0, 0.0)),
    attention=AttentionTerms(
        launch_s=0.0,
        prefill_sequence_s=0.0,
        prefill_token_s=0.5,
        prefill_pair_s=0.0,
        decode_sequence_s=0.0,
        kv_token_s=1 / 64,
    ),
)
"""A step takes one second, half a second more per prompt token, and a 64th of one per token that is read."""


def metered(*, tells_every_token: bool = False, power: PowerModel | None = POWER, **limits: Any) -> Engine:
    return Engine(replace(SPEC, **limits), COSTS, tells_every_token=tells_every_token, power=power)


def add(engine: Engine, name: str, prompt: int, output: int, at_s: float = 0.0) -> None:
    engine.add(EngineRequest(request_id=name, prompt_tokens=prompt, output_tokens=output), at_s)


def drain(engine: Engine) -> tuple[list[EngineEvent], float]:
    """Everything that happens by itself, and when the last of it did."""
    events: list[EngineEvent] = []
    at_s = 0.0
    while (due_s := engine.next_event_at_s()) is not None:
        at_s = due_s
        events += engine.advance(due_s)
    return events, at_s


def test_an_engine_that_never_works_draws_its_idle_power() -> None:
    engine = metered()
    assert engine.usage(7.0) == Usage(idle_s=7.0, decode_s=0.0, prefill_s=0.0)
    assert engine.energy_j(7.0) == 70.0


def test_a_prefill_draws_decode_power_for_one_token_s_step_and_prefill_power_for_the_rest() -> None:
    engine = metered()
    add(engine, "a", prompt=4, output=1, at_s=2.0)
    # Two idle seconds; a step of three, of which a single token's would take one; two more idle ones.
    assert engine.energy_j(7.0) == 2 * 10 + 1 * 100 + 2 * 200 + 2 * 10
    assert engine.usage(7.0) == Usage(idle_s=4.0, decode_s=1.0, prefill_s=2.0)


def test_chunks_add_to_the_decoding_of_their_step() -> None:
    engine = metered()
    add(engine, "a", prompt=4, output=2)
    add(engine, "b", prompt=6, output=1, at_s=1.0)
    # 3 s for the first prompt; then 1 s and 5 tokens' reading for its next token, with 3 s of the second prompt.
    assert engine.usage(10.0) == Usage(idle_s=10 - 7 - 5 / 64, decode_s=1 + 1 + 5 / 64, prefill_s=2.0 + 3.0)


def test_a_step_under_way_counts_as_far_as_it_is() -> None:
    engine = metered()
    add(engine, "a", prompt=4, output=1)
    assert engine.usage(1.5) == Usage(idle_s=0.0, decode_s=0.5, prefill_s=1.0)
    assert engine.energy_j(1.5) == 1.5 * POWER.step_w(2 / 3)
    assert engine.energy_j(3.0) == 100 + 2 * 200


def test_a_stretch_of_decode_steps_is_the_sum_of_its_steps() -> None:
    engine = metered()
    add(engine, "a", prompt=4, output=31)
    _, ended_s = drain(engine)
    steps_s = [COSTS.step_seconds(StepWork(decode_sequences=1, decode_context_tokens=4 + n)) for n in range(1, 31)]
    assert ended_s == 3 + sum(steps_s)
    assert engine.energy_j(ended_s) == pytest.approx(100 + 2 * 200 + sum(100 * step_s for step_s in steps_s))


REQUESTS = st.lists(
    st.tuples(st.integers(1, 40), st.integers(1, 30), st.floats(0, 60, allow_nan=False)), min_size=1, max_size=10
)
LIMITS = st.fixed_dictionaries({"total_blocks": st.integers(18, 40), "plans_ahead": st.booleans()})


def serve(engine: Engine, requests: list[tuple[int, int, float]]) -> tuple[list[EngineEvent], float]:
    """All of these, to the end."""
    events: list[EngineEvent] = []
    for index, (prompt, output, at_s) in enumerate(sorted(requests, key=lambda each: each[2])):
        events += engine.advance(at_s)
        add(engine, f"r{index}", prompt, output, at_s)
    rest, ended_s = drain(engine)
    return events + rest, ended_s


@settings(max_examples=80, deadline=None)
@given(requests=REQUESTS, limits=LIMITS)
def test_jumping_over_steps_takes_the_same_energy(
    requests: list[tuple[int, int, float]], limits: dict[str, Any]
) -> None:
    jumping, stepping = metered(**limits), metered(**limits)
    _, ended_s = serve(jumping, requests)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Scheduler, "_steady_steps", lambda self: 1)
        assert serve(stepping, requests)[1] == pytest.approx(ended_s)
    end_s = ended_s + 1.0
    assert jumping.energy_j(end_s) == pytest.approx(stepping.energy_j(end_s))


@settings(max_examples=80, deadline=None)
@given(requests=REQUESTS, limits=LIMITS, looks=st.lists(st.floats(60, 400, allow_nan=False), max_size=20))
def test_times_add_up_whenever_one_looks(
    requests: list[tuple[int, int, float]], limits: dict[str, Any], looks: list[float]
) -> None:
    often, once = metered(**limits), metered(**limits)
    for engine in (often, once):
        for index, (prompt, output, at_s) in enumerate(sorted(requests, key=lambda each: each[2])):
            add(engine, f"r{index}", prompt, output, at_s)
    seen = []
    for at_s in sorted(looks):
        usage, energy_j = often.usage(at_s), often.energy_j(at_s)
        assert usage is not None
        assert energy_j is not None
        assert usage.idle_s + usage.busy_s == pytest.approx(at_s)
        seen.append((at_s, energy_j))
    for (before_s, before_j), (after_s, after_j) in pairwise(seen):
        passed_s = after_s - before_s
        assert POWER.idle_w * passed_s - 1e-6 <= after_j - before_j <= POWER.prefill_w * passed_s + 1e-6
    assert often.energy_j(10_000.0) == pytest.approx(once.energy_j(10_000.0))
    usage = once.usage(10_000.0)
    assert usage is not None
    assert usage.busy_s == pytest.approx(once.snapshot().busy_s)


@settings(max_examples=80, deadline=None)
@given(requests=REQUESTS, limits=LIMITS, tells=st.booleans())
def test_a_power_model_changes_no_time(
    requests: list[tuple[int, int, float]], limits: dict[str, Any], tells: bool
) -> None:
    with_power, without = (metered(tells_every_token=tells, power=power, **limits) for power in (POWER, None))
    assert serve(with_power, requests) == serve(without, requests)
    assert with_power.snapshot() == without.snapshot()


def test_an_engine_without_a_power_model_accounts_for_nothing() -> None:
    engine = metered(power=None)
    add(engine, "a", prompt=4, output=2)
    assert engine.usage(10.0) is None
    assert engine.energy_j(10.0) is None


def test_power_rises_from_idle_to_the_tdp() -> None:
    for wrong in ({"idle_w": -1.0}, {"decode_w": 5.0}, {"prefill_w": 99.0}, {"tdp_w": 199.0}):
        with pytest.raises(ValueError, match="must rise"):
            replace(POWER, **wrong)


def test_a_step_draws_between_decode_and_prefill_power() -> None:
    assert [POWER.step_w(share) for share in (0.0, 0.25, 1.0)] == [100.0, 125.0, 200.0]


def test_work_slows_down_only_once_the_cap_is_below_what_it_draws() -> None:
    assert POWER.slowdown(100.0, cap_w=100.0) == 1.0
    # A fifth of the power above idle is left, so the clock falls to 0.2 ** (1 / 2.5).
    assert POWER.slowdown(110.0, cap_w=30.0) == pytest.approx(5**0.4)


DENSE = replace(
    COSTS,
    tokens=Curve((1, 100, 1000, 2000), (4.0, 5.0, 10.0, 20.0)),
    sequences=Curve((1, 8), (1.0, 2.0)),
    attention=AttentionTerms(**{each.name: 1.0 for each in fields(AttentionTerms)}),
)
"""Weights take four seconds to read, a token takes 10 ms of arithmetic: from a thousand on, that alone counts."""


def test_a_cap_slows_prompts_and_decoding_apart() -> None:
    # Caps of 150 and 50 W.
    for ratio, decode in ((0.6, 1.0), (0.2, (90 / 40) ** 0.4)):
        prefill = (190 / (250 * ratio - 10)) ** 0.4
        table, power = capped(DENSE, POWER, ratio)
        attention = table.attention
        assert (attention.prefill_token_s, attention.kv_token_s) == pytest.approx((prefill, decode))
        assert (attention.prefill_pair_s, attention.prefill_sequence_s) == pytest.approx((prefill, prefill))
        assert (attention.decode_sequence_s, attention.launch_s) == pytest.approx((decode, 1.0))
        assert table.sequences.ys == pytest.approx((decode, 2 * decode))
        assert table.tokens.ys == pytest.approx((4 * decode, 5 * decode, 10 * prefill, 20 * prefill))
        assert table.step_overhead_s == 1.0
        assert power == replace(POWER, decode_w=min(100.0, 250 * ratio), prefill_w=250 * ratio)


def test_a_cap_that_nothing_reaches_changes_nothing() -> None:
    assert capped(DENSE, POWER, 0.8) == (DENSE, POWER)


def test_a_lower_cap_on_top_of_a_cap_is_the_lower_cap() -> None:
    twice_slowed, twice = capped(*capped(COSTS, POWER, 0.6), 0.3)
    slowed, once = capped(COSTS, POWER, 0.3)
    assert twice == once
    work = StepWork(prefill=((8, 3),), decode_sequences=2, decode_context_tokens=30)
    assert twice_slowed.step_seconds(work) == pytest.approx(slowed.step_seconds(work))


@pytest.mark.parametrize("ratio", [0.04, 1.01])
def test_a_cap_lies_between_the_idle_power_and_the_tdp(ratio: float) -> None:
    with pytest.raises(ValueError, match="a cap lies between"):
        capped(COSTS, POWER, ratio)


@pytest.mark.parametrize("name", sorted(ENGINES))
def test_a_cap_of_60_percent_slows_prefill_markedly_and_decoding_hardly(name: str) -> None:
    spec, costs = load_engine(name)
    capped_spec, slowed = load_engine(f"{name}@cap60")
    assert capped_spec == replace(spec, name=f"{name}@cap60")
    assert slowed.name == f"{name}@cap60"
    prompt = StepWork(prefill=((spec.max_batched_tokens, 0),))
    assert 1.2 < slowed.step_seconds(prompt) / costs.step_seconds(prompt) < 1.4
    for sequences in (1, 16, 64, 256):
        batch = StepWork(decode_sequences=sequences, decode_context_tokens=2000 * sequences)
        assert 1.0 <= slowed.step_seconds(batch) / costs.step_seconds(batch) < 1.05


def test_a_preset_draws_what_its_gpus_draw() -> None:
    one, four = GPU_POWER["h100"], power_model("h100-llama70b-tp4")
    assert four == PowerModel(
        idle_w=4 * one.idle_w, decode_w=4 * one.decode_w, prefill_w=4 * one.prefill_w, tdp_w=4 * 700.0
    )
    assert power_model("h100-llama70b-tp4@cap60") == replace(four, prefill_w=0.6 * four.tdp_w)
    assert {name.partition("-")[0] for name in ENGINES} == set(GPU_POWER)


def test_every_preset_can_be_capped_as_low_as_its_name_can_say() -> None:
    for name in ENGINES:
        power = power_model(f"{name}@cap30")
        assert power.idle_w < power.prefill_w == pytest.approx(0.3 * power.tdp_w)


def test_a_preset_s_own_prices_are_left_as_they_were() -> None:
    before = load_cost_table("h100-llama8b")
    load_engine("h100-llama8b@cap40")
    assert load_engine("h100-llama8b")[1] == before


@pytest.mark.parametrize(
    "name", ["b200@cap60", "h100-llama8b@cap", "h100-llama8b@cap29", "h100-llama8b@cap100", "h100-llama8b@cap60@cap50"]
)
def test_other_names_are_no_engines(name: str) -> None:
    with pytest.raises(UnknownEngine, match="each with @cap30 to @cap99 and @chunkN behind its name"):
        load_engine(name)
    with pytest.raises(UnknownEngine):
        power_model(name)
