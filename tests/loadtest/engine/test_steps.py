import pytest

from loadtest.engine.types import EngineRequest, FinishReason, RequestFinished, TokenMade
from tests.loadtest.engine.engine_lab import Lab


def test_the_step_that_completes_a_prompt_makes_the_first_token() -> None:
    lab = Lab()
    lab.add("a", prompt=10, output=3)
    lab.drain()
    assert lab.token_times("a") == [1, 2, 3]
    assert lab.finish("a") == RequestFinished(
        at_s=3, request_id="a", reason=FinishReason.LENGTH, cached_tokens=0, preemptions=0
    )


def test_a_prompt_longer_than_the_budget_is_computed_in_chunks() -> None:
    lab = Lab()
    lab.add("a", prompt=40, output=2)
    lab.drain()
    assert [step.prefill for step in lab.costs.steps] == [((16, 0),), ((16, 16),), ((8, 32),), ()]
    assert lab.token_times("a") == [3, 4]


def test_a_step_computes_no_more_of_one_prompt_than_its_threshold_and_short_ones_pass() -> None:
    lab = Lab(long_prefill_tokens=6)
    lab.add("a", prompt=15)
    lab.add("b", prompt=5)
    lab.drain()
    assert [step.prefill for step in lab.costs.steps] == [((6, 0), (5, 0)), ((6, 6),), ((3, 12),)]
    assert [lab.token_times(name) for name in "ab"] == [[3], [1]]


def test_a_threshold_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one token"):
        Lab(long_prefill_tokens=0)


def test_prompts_share_a_step_and_the_last_is_cut_to_the_budget() -> None:
    lab = Lab()
    lab.add("a", prompt=6)
    lab.add("b", prompt=7)
    lab.add("c", prompt=8)
    lab.drain()
    assert [step.prefill for step in lab.costs.steps] == [((6, 0), (7, 0), (3, 0)), ((5, 3),)]
    assert [lab.token_times(name) for name in "abc"] == [[1], [1], [2]]


def test_running_sequences_take_their_tokens_before_prompts_get_the_rest() -> None:
    lab = Lab()
    lab.add("a", prompt=5, output=9)
    lab.add("b", prompt=5, output=9)
    lab.run(1)
    lab.add("c", prompt=30)
    lab.run(2)
    step = lab.costs.steps[2]
    assert (step.prefill, step.decode_sequences) == (((14, 0),), 2)


def test_a_decode_attends_to_everything_up_to_its_own_token() -> None:
    lab = Lab()
    lab.add("a", prompt=5, output=3)
    lab.add("b", prompt=7, output=3)
    lab.drain()
    assert [step.decode_context_tokens for step in lab.costs.steps] == [0, 6 + 8]


def test_requests_of_one_instant_share_the_step_that_starts_then() -> None:
    lab = Lab()
    lab.run(4)
    lab.add("a", prompt=5)
    lab.add("b", prompt=5)
    lab.drain()
    assert lab.token_times("a") == lab.token_times("b") == [5]


def test_a_request_that_arrives_during_a_step_waits_for_the_next() -> None:
    lab = Lab()
    lab.add("a", prompt=5, output=2)
    lab.run(0.5)
    lab.add("b", prompt=5)
    lab.drain()
    assert lab.token_times("b") == [2]


def test_a_step_starts_when_its_work_was_added_however_late_the_host_looks() -> None:
    lab = Lab()
    lab.run(1)
    lab.add("a", prompt=5, output=2)
    lab.run(60)
    assert lab.token_times("a") == [2, 3]


def test_no_more_sequences_run_than_there_are_slots() -> None:
    lab = Lab(max_running=2)
    for name in "abc":
        lab.add(name, prompt=2, output=2)
    lab.run(1)
    snapshot = lab.engine.snapshot()
    assert (snapshot.running, snapshot.waiting) == (2, 1)
    lab.drain()
    assert lab.token_times("c") == [3, 4]


def test_a_budget_smaller_than_the_batch_is_refused() -> None:
    with pytest.raises(ValueError, match="one token for every running sequence"):
        Lab(max_batched_tokens=2)


def test_the_head_of_the_queue_blocks_smaller_requests_behind_it() -> None:
    lab = Lab(total_blocks=10)
    lab.add("a", prompt=24, output=3)
    lab.add("too big beside a", prompt=24)
    lab.add("small", prompt=4)
    lab.drain()
    assert lab.token_times("a") == [2, 3, 4]
    assert lab.token_times("too big beside a") == [6]
    assert lab.token_times("small") == [6]


def test_a_request_that_can_never_fit_is_rejected_at_once() -> None:
    lab = Lab(total_blocks=4)
    lab.add("fits exactly", prompt=8, output=9)
    lab.add("one token too many", prompt=8, output=10)
    assert lab.engine.next_event_at_s() == 0
    lab.drain()
    assert lab.finish("fits exactly").reason is FinishReason.LENGTH
    assert lab.finish("one token too many") == RequestFinished(
        at_s=0, request_id="one token too many", reason=FinishReason.REJECTED, cached_tokens=0, preemptions=0
    )
    assert lab.engine.snapshot().finished == 1


def test_advance_tells_what_happened_up_to_and_including_now() -> None:
    lab = Lab()
    lab.add("a", prompt=5, output=3)
    assert lab.run(0.999) == []
    assert lab.run(1.0) == [TokenMade(at_s=1.0, request_id="a", index=0)]
    assert lab.run(1.0) == []
    assert len(lab.run(9.0)) == 3


def test_the_next_event_is_now_while_a_step_can_start_and_then_the_steps_end() -> None:
    lab = Lab()
    assert lab.engine.next_event_at_s() is None
    lab.run(3)
    lab.add("a", prompt=5)
    assert lab.engine.next_event_at_s() == 3
    lab.run(3)
    assert lab.engine.next_event_at_s() == 4
    lab.run(4)
    assert lab.engine.next_event_at_s() is None


def test_time_never_goes_back() -> None:
    lab = Lab()
    lab.run(2)
    with pytest.raises(ValueError, match="time goes back"):
        lab.engine.advance(1.9)


@pytest.mark.parametrize(
    "contradiction",
    [
        {"prompt_tokens": 0},
        {"output_tokens": 0},
        {"remote_tokens": 9},
        {"remote_tokens": -1},
        {"block_hashes": (1, 2, 3)},
    ],
)
def test_a_request_that_contradicts_itself_is_an_error(contradiction: dict[str, object]) -> None:
    fields = {"request_id": "a", "prompt_tokens": 8, "output_tokens": 1} | contradiction
    with pytest.raises(ValueError, match=r"token|hash"):
        Lab().engine.add(EngineRequest(**fields), 0.0)


def test_an_id_is_free_again_once_its_request_finished() -> None:
    lab = Lab()
    lab.add("a", prompt=5)
    with pytest.raises(ValueError, match="still in the engine"):
        lab.add("a", prompt=5)
    lab.drain()
    lab.add("a", prompt=5)
    lab.drain()
    assert lab.engine.snapshot().finished == 2


def test_the_snapshot_counts_tokens_steps_and_busy_time() -> None:
    lab = Lab()
    lab.add("a", prompt=20, output=3)
    lab.run(2.5)
    snapshot = lab.engine.snapshot()
    assert (snapshot.steps, snapshot.busy_s) == (2, 2.0)
    assert (snapshot.prompt_tokens, snapshot.generated_tokens, snapshot.finished) == (20, 1, 0)
    assert snapshot.kv_used_ratio == pytest.approx(6 / 100)
    lab.run(10)
    snapshot = lab.engine.snapshot()
    assert (snapshot.steps, snapshot.busy_s, snapshot.generated_tokens) == (4, 4.0, 3)
    assert (snapshot.running, snapshot.waiting, snapshot.kv_used_ratio) == (0, 0, 0.0)


def test_an_engine_that_plans_ahead_serves_an_arrival_a_step_later() -> None:
    for plans_ahead, first_token_s in ((False, 3), (True, 4)):
        lab = Lab(plans_ahead=plans_ahead)
        lab.add("a", prompt=5, output=9)
        lab.run(1.5)
        lab.add("b", prompt=5)
        lab.drain()
        assert lab.token_times("a") == [1, 2, 3, 4, 5, 6, 7, 8, 9]
        assert lab.token_times("b") == [first_token_s]


def test_an_engine_that_plans_ahead_gives_a_slot_away_a_step_later() -> None:
    for plans_ahead, first_token_s in ((False, 4), (True, 5)):
        lab = Lab(plans_ahead=plans_ahead, max_running=2)
        lab.add("a", prompt=4, output=9)
        lab.add("b", prompt=4, output=3)
        lab.add("c", prompt=4)
        lab.drain()
        assert lab.token_times("b") == [1, 2, 3]
        assert lab.token_times("c") == [first_token_s]


def test_an_idle_engine_has_planned_nothing_ahead() -> None:
    lab = Lab(plans_ahead=True)
    lab.run(3)
    lab.add("a", prompt=5, output=2)
    lab.drain()
    lab.add("b", prompt=5)
    lab.drain()
    assert lab.token_times("a") == [4, 5]
    assert lab.token_times("b") == [6]
