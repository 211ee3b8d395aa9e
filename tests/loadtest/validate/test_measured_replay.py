import numpy as np
import pytest

from gateway.core.step_cost import AttentionTerms, CostTable, Curve
from loadtest.engine.types import EngineRequest, EngineSpec
from loadtest.validate.measured_replay import replay, requests_of
from tests.loadtest.validate.measured_lab import small_run

FREE = Curve((1, 2), (0.0, 0.0))
ONE_SECOND_STEPS = CostTable(
    name="steps of a second",
    step_overhead_s=1.0,
    tokens=FREE,
    sequences=FREE,
    attention=AttentionTerms(
        launch_s=0.0,
        prefill_sequence_s=0.0,
        prefill_token_s=0.0,
        prefill_pair_s=0.0,
        decode_sequence_s=0.0,
        kv_token_s=0.0,
    ),
)


def spec(*, total_blocks: int = 100, max_running: int = 8) -> EngineSpec:
    return EngineSpec(name="small", block_tokens=16, total_blocks=total_blocks, max_running=max_running)


def request(name: str, prompt: int, output: int) -> EngineRequest:
    return EngineRequest(request_id=name, prompt_tokens=prompt, output_tokens=output)


def test_each_request_is_timed_when_it_is_scheduled_and_at_its_first_and_last_token() -> None:
    arrivals = [(0.0, request("a", 100, 3)), (0.5, request("b", 40, 2))]
    times = replay(arrivals, spec(), ONE_SECOND_STEPS).times
    assert times.scheduled_s.tolist() == [0.0, 1.0]
    assert times.first_token_s.tolist() == [1.0, 2.0]
    assert times.last_token_s.tolist() == [3.0, 3.0]
    assert times.output_tokens.tolist() == [3, 2]


def test_a_request_waits_for_a_slot() -> None:
    arrivals = [(0.0, request("a", 10, 5)), (0.0, request("b", 10, 1))]
    times = replay(arrivals, spec(max_running=1), ONE_SECOND_STEPS).times
    assert times.queueing_s.tolist() == [0.0, 5.0]


def test_an_idle_engine_waits_for_the_next_arrival() -> None:
    arrivals = [(0.0, request("a", 10, 1)), (7.5, request("b", 10, 1))]
    times = replay(arrivals, spec(), ONE_SECOND_STEPS).times
    assert times.scheduled_s.tolist() == [0.0, 7.5]
    assert times.first_token_s.tolist() == [1.0, 8.5]


def test_a_preempted_request_keeps_the_times_that_it_had() -> None:
    arrivals = [(0.0, request("a", 32, 33)), (0.0, request("b", 32, 33))]
    replayed = replay(arrivals, spec(total_blocks=6), ONE_SECOND_STEPS)
    assert replayed.preemptions == 1
    assert replayed.times.scheduled_s.tolist() == [0.0, 0.0]
    assert replayed.times.first_token_s.tolist() == [1.0, 1.0]
    assert np.all(np.diff(replayed.times.last_token_s) > 0)


def test_a_request_that_cannot_fit_is_an_error() -> None:
    with pytest.raises(ValueError, match="rejects 'a'"):
        replay([(0.0, request("a", 100, 1))], spec(total_blocks=2), ONE_SECOND_STEPS)


def test_a_runs_requests_share_no_blocks() -> None:
    (first_s, first), (second_s, second) = requests_of(small_run(), 16)
    assert (first_s, second_s) == (0.0, 0.25)
    assert (len(first.block_hashes), len(second.block_hashes)) == (6, 2)
    assert len({*first.block_hashes, *second.block_hashes}) == 8
