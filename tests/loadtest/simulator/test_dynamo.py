from random import Random
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.step_cost import StepWork
from loadtest.engine.engine import Engine
from loadtest.simulator.dynamo import KvRouter, ReplayCosts, RoundRobin
from loadtest.simulator.flight import NOWHERE, Flight
from loadtest.traces.types import TraceRequest

COSTS = ReplayCosts(kv_tokens=1000)


@pytest.mark.parametrize(
    ("work", "nanoseconds"),
    [
        # 4.209989e-7 n^2 + 1.518344e-2 n + 16.50142 ms at n = 1000.
        (StepWork(prefill=((1000, 0),)), 32_105_859),
        # What was there before is not paid for.
        (StepWork(prefill=((1000, 500),)), 32_105_859),
        # Two chunks count as twice their mean length: 2 x ((401 + 99) // 2 - 99 // 2) = 402 tokens.
        (StepWork(prefill=((100, 50), (301, 49))), 22_673_198),
        # 5.74 + 54.01 u - 25.74 u^2 ms at u = 0.5.
        (StepWork(decode_sequences=9, decode_context_tokens=500), 26_310_000),
        (StepWork(decode_sequences=1, decode_context_tokens=500), 26_310_000),
        # u is at most 1.
        (StepWork(decode_sequences=1, decode_context_tokens=1000), 34_010_000),
        (StepWork(decode_sequences=1, decode_context_tokens=4000), 34_010_000),
        (StepWork(prefill=((1000, 0),), decode_sequences=1, decode_context_tokens=500), 58_415_859),
    ],
)
def test_a_step_takes_what_the_replay_says(work: StepWork, nanoseconds: int) -> None:
    assert COSTS.step_seconds(work) == pytest.approx(nanoseconds * 1e-9, rel=1e-12)


@given(
    kv_tokens=st.integers(1_000, 1_100_000),
    sequences=st.integers(1, 256),
    share=st.floats(0.0, 1.2),
    steps=st.integers(1, 60),
)
def test_a_stretch_takes_as_long_as_its_steps(kv_tokens: int, sequences: int, share: float, steps: int) -> None:
    costs, context = ReplayCosts(kv_tokens), sequences + int(share * kv_tokens)
    each = [
        costs.step_seconds(StepWork(decode_sequences=sequences, decode_context_tokens=context + step * sequences))
        for step in range(steps)
    ]
    # Each step is rounded to nanoseconds, their sum is not.
    assert costs.decode_stretch(sequences, context).seconds(steps) == pytest.approx(sum(each), abs=steps * 1e-9)


def test_a_stretch_goes_on_at_the_full_price_once_the_cache_is_full() -> None:
    stretch = COSTS.decode_stretch(10, 980)
    # In use: 980, 990, 1000, then more than there is.
    assert stretch.seconds(7) - stretch.seconds(2) == pytest.approx(5 * 34.01e-3)
    assert stretch.seconds(2) - stretch.seconds(1) == pytest.approx((5.74 + 54.01 * 0.99 - 25.74 * 0.99**2) * 1e-3)


def flight(index: int, tokens: int, ids: tuple[int, ...] = ()) -> Flight:
    return Flight(TraceRequest(index=index, arrival_s=0.0, input_tokens=tokens, output_tokens=5, hash_ids=ids), 0.0)


def test_prefill_takes_turns_by_arrival_and_decode_by_hand_off() -> None:
    place = RoundRobin([0, 1], [2, 3, 4])
    flights = [flight(index, 64) for index in range(4)]
    for each in flights:
        place.arrived(each, 0.0)
    assert [each.prefill_engine for each in flights] == [0, 1, 0, 1]
    assert [each.decode_engine for each in flights] == [NOWHERE] * 4
    for each in reversed(flights):
        place.prefilled(each, 1.0)
    assert [each.decode_engine for each in flights] == [2, 4, 3, 2]


def test_engines_that_do_both_take_turns_by_arrival() -> None:
    place = RoundRobin([], [0, 1])
    flights = [flight(index, 64) for index in range(3)]
    for each in flights:
        place.arrived(each, 0.0)
    assert [(each.prefill_engine, each.decode_engine) for each in flights] == [(NOWHERE, 0), (NOWHERE, 1), (NOWHERE, 0)]


class Known:
    """An engine that knows so many leading blocks of every prompt."""

    def __init__(self, blocks: int = 0) -> None:
        self.blocks = blocks

    def known_blocks(self, hashes: tuple[int, ...], piece_blocks: int) -> int:
        return min(self.blocks, len(hashes) * piece_blocks)


class SpyRandom(Random):
    """Takes the first of equals, and remembers between whom it had to choose."""

    def __init__(self) -> None:
        super().__init__(0)
        self.ties: list[list[int]] = []

    def choice(self, seq: Any) -> Any:
        self.ties.append(list(seq))
        return seq[0]


def router(known: list[int], prefill: list[int], decode: list[int]) -> tuple[KvRouter, SpyRandom]:
    rng = SpyRandom()
    engines = cast("list[Engine]", [Known(blocks) for blocks in known])
    return KvRouter(engines, prefill, decode, rng), rng


def test_a_prefill_engine_costs_its_queue_and_the_prompt_less_its_hits() -> None:
    place, rng = router([0, 4, 0], prefill=[0, 1], decode=[2])
    first, second, third = (flight(index, 1024, ids=(index, 100 + index)) for index in range(3))
    place.arrived(first, 0.0)  # 16 blocks against 16 - 4
    assert (first.prefill_engine, rng.ties[-1]) == (1, [1])
    place.arrived(second, 0.0)  # 16 against 12 + 16 - 4
    assert second.prefill_engine == 0
    place.arrived(third, 0.0)  # 32 against 24
    assert third.prefill_engine == 1
    place.prefilled(first, 1.0)
    place.prefilled(third, 1.0)
    fourth = flight(3, 1024)
    place.arrived(fourth, 1.0)  # 32 against 16: what is prefilled queues no more
    assert (fourth.prefill_engine, rng.ties[-1]) == (1, [1])


def test_exact_ties_are_left_to_chance() -> None:
    place, rng = router([0, 0, 0, 0], prefill=[0, 1], decode=[2, 3])
    one = flight(0, 640)
    place.arrived(one, 0.0)
    place.prefilled(one, 0.0)
    assert rng.ties == [[0, 1], [2, 3]]


def test_a_decode_engine_costs_the_full_blocks_of_its_unfinished_prompts() -> None:
    place, rng = router([0] * 3, prefill=[0], decode=[1, 2])
    flights = [flight(index, tokens) for index, tokens in enumerate((640, 127, 64, 64))]
    for each in flights:
        place.arrived(each, 0.0)
    for each in flights[:3]:
        place.prefilled(each, 1.0)
    # 10 blocks on the first; then one block each on the other.
    assert [each.decode_engine for each in flights[:3]] == [1, 2, 2]
    place.ended(flights[0], 2.0)
    place.prefilled(flights[3], 2.0)
    assert (flights[3].decode_engine, rng.ties[-1]) == (1, [1])


def test_an_engine_that_does_both_costs_the_distinct_blocks_in_use_there_too() -> None:
    place, rng = router([0, 0], prefill=[], decode=[0, 1])
    first, alike, other = flight(0, 1024, (1, 2)), flight(1, 1024, (1, 2)), flight(2, 1024, (8, 9))
    place.arrived(first, 0.0)  # (16 queued + 16 new in use) on either
    assert rng.ties[-1] == [0, 1]
    place.first_token(first, 1.0)
    place.arrived(alike, 1.0)  # 16 + 16, none of them new, against 16 + 16
    assert rng.ties[-1] == [0, 1]
    place.first_token(alike, 2.0)
    place.arrived(other, 2.0)  # 16 + 16 + 16 against 16 + 16
    assert (other.decode_engine, rng.ties[-1]) == (1, [1])
    place.first_token(other, 3.0)
    place.ended(first, 4.0)
    # The twin still uses the blocks that the first one used.
    third = flight(3, 512, (8,))
    place.arrived(third, 4.0)  # 8 + 16 + 8 against 8 + 16, for piece 8 is in use there
    assert (third.decode_engine, rng.ties[-1]) == (1, [1])
    for each in (alike, other, third):
        place.ended(each, 5.0)
    place.first_token(third, 5.0)
    place.arrived(flight(4, 64), 6.0)
    assert rng.ties[-1] == [0, 1]


def test_a_prompts_last_piece_has_its_full_blocks_only() -> None:
    place, rng = router([0, 0], prefill=[], decode=[0, 1])
    first = flight(0, 700, (1, 2))  # 10 full blocks: 8 and 2
    place.arrived(first, 0.0)
    place.first_token(first, 1.0)
    # 640 tokens unlike any: 10 + 10 against 10; then 10 + 10 against 10 queued + 10.
    second, third = flight(1, 640), flight(2, 640)
    place.arrived(second, 1.0)
    place.arrived(third, 1.0)
    assert (second.decode_engine, rng.ties[-1]) == (1, [0, 1])
