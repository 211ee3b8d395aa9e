import pytest

from loadtest.simulator.flight import Flight, PromptShape, leg
from tests.loadtest.simulator.simulator_lab import request


def test_a_trace_block_of_several_engine_blocks_is_one_piece() -> None:
    # 1,300 tokens are 20 full blocks of 64: the third piece has four of its eight.
    prompt = request(0, prompt=1300, hash_ids=(7, 8, 9), block_tokens=512)
    assert PromptShape(64).of(prompt) == ((7, 8, 9), 8)


def test_a_piece_without_a_full_engine_block_has_no_hash() -> None:
    assert PromptShape(64).of(request(0, prompt=1087, hash_ids=(7, 8, 9), block_tokens=512)) == ((7, 8), 8)
    assert PromptShape(64).of(request(0, prompt=1088, hash_ids=(7, 8, 9), block_tokens=512)) == ((7, 8, 9), 8)


def test_an_engine_block_of_several_trace_blocks_has_the_hash_of_its_last() -> None:
    prompt = request(0, prompt=150, hash_ids=tuple(range(10)), block_tokens=16)
    assert PromptShape(64).of(prompt) == ((3, 7), 1)


def test_equal_blocks_are_taken_as_they_are() -> None:
    assert PromptShape(64).of(request(0, prompt=130, hash_ids=(1, 2, 3), block_tokens=64)) == ((1, 2), 1)


def test_a_prompt_with_fewer_ids_than_blocks_shares_what_has_ids() -> None:
    assert PromptShape(64).of(request(0, prompt=2000, hash_ids=(5,), block_tokens=512)) == ((5,), 8)
    assert PromptShape(64).of(request(0, prompt=2000, hash_ids=(5, 6, 7), block_tokens=16)) == ((), 1)


def test_blocks_that_do_not_go_into_each_other_are_an_error() -> None:
    with pytest.raises(ValueError, match="blocks of 48 tokens in the trace do not go into the engine's of 64"):
        PromptShape(64).of(request(0, prompt=500, hash_ids=(1,), block_tokens=48))


def test_a_prefill_leg_makes_one_token_and_holds_its_kv() -> None:
    flight = Flight(request(3, prompt=9, output=5, hash_ids=(1, 2, 3)), 0.0)
    flight.prefill_engine, flight.decode_engine = 0, 1
    first = leg(flight, PromptShape(4), prefill=True)
    assert (first.request_id, first.output_tokens, first.holds_kv, first.remote_tokens) == ("3", 1, True, 0)
    assert first.block_hashes == (1, 2)
    second = leg(flight, PromptShape(4), prefill=False)
    assert (second.request_id, second.output_tokens, second.holds_kv, second.remote_tokens) == ("3", 5, False, 9)


def test_a_local_leg_has_its_prompt_computed() -> None:
    flight = Flight(request(3, prompt=9, output=5), 0.0)
    flight.decode_engine = 1
    only = leg(flight, PromptShape(4), prefill=False)
    assert (only.output_tokens, only.holds_kv, only.remote_tokens) == (5, False, 0)


def test_times_count_from_the_arrival() -> None:
    flight = Flight(request(0, output=5), 2.0)
    assert (flight.ttft_s, flight.tpot_s) == (None, None)
    flight.first_token_s = 3.5
    assert (flight.ttft_s, flight.tpot_s) == (1.5, None)
    flight.ended_s = 5.5
    assert flight.tpot_s == 0.5


def test_one_token_has_no_gaps() -> None:
    flight = Flight(request(0, output=1), 0.0)
    flight.first_token_s = flight.ended_s = 1.0
    assert flight.tpot_s is None
