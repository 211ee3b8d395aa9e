from loadtest.engine.types import FinishReason
from tests.loadtest.engine.engine_lab import Lab


def crowded() -> Lab:
    """Two sequences that fill the memory; both need one more block at 2 s."""
    lab = Lab(total_blocks=4)
    lab.add("early", prompt=8, output=8, text=1)
    lab.add("late", prompt=7, output=6, text=2)
    return lab


def test_the_most_recently_admitted_sequence_makes_room() -> None:
    lab = crowded()
    lab.run(1.5)
    assert lab.engine.snapshot().preemptions == 1
    assert (lab.engine.snapshot().running, lab.engine.snapshot().waiting) == (1, 1)
    lab.drain()
    assert lab.token_times("early") == [1, 2, 3, 4, 5, 6, 7, 8]
    assert (lab.finish("early").preemptions, lab.finish("late").preemptions) == (0, 1)


def test_a_preempted_sequence_goes_on_with_its_next_token() -> None:
    lab = crowded()
    lab.drain()
    assert lab.token_times("late") == [1, 9, 10, 11, 12, 13]
    assert lab.finish("late").reason is FinishReason.LENGTH


def test_what_was_generated_is_computed_again_with_the_prompt() -> None:
    lab = Lab(total_blocks=4)
    lab.add("early", prompt=8, output=8)
    lab.add("late", prompt=7, output=6)
    lab.drain()
    assert ((8, 0),) in [step.prefill for step in lab.costs.steps]


def test_recomputation_reuses_what_is_still_cached() -> None:
    lab = Lab(total_blocks=6, max_batched_tokens=64)
    lab.add("early", prompt=8, output=6, text=1)
    lab.add("late", prompt=12, output=6, text=2)
    lab.drain()
    assert lab.finish("late").preemptions == 1
    assert [step.prefill for step in lab.costs.steps if step.prefill] == [((8, 0), (12, 0)), ((5, 8),)]
    assert lab.finish("late").cached_tokens == 0


def test_a_preempted_sequence_goes_to_the_front_of_the_queue() -> None:
    lab = crowded()
    lab.run(0.5)
    lab.add("behind", prompt=12, output=1)
    lab.drain()
    assert lab.token_times("late")[1] == 9
    assert lab.token_times("behind") == [14]


def test_a_step_that_preempts_admits_nothing() -> None:
    lab = Lab(total_blocks=6, transfer_latency_s=0.1, transfer_bytes_per_s=1e3)
    lab.add("early", prompt=8, output=2)
    lab.add("late", prompt=7, output=6)
    lab.add("leg", prompt=8, remote_tokens=8)
    lab.drain()
    assert lab.arrival_s("leg") < 1
    assert lab.finish("late").preemptions == 1
    assert lab.token_times("early") == [1, 2]
    assert lab.token_times("leg") == [3]


def test_two_that_fall_in_one_step_keep_their_order() -> None:
    lab = Lab(total_blocks=5, max_batched_tokens=64)
    lab.add("a", prompt=8, output=5)
    lab.add("b", prompt=8, output=2)
    lab.add("c", prompt=2, output=2)
    lab.run(1.5)
    assert lab.engine.snapshot().preemptions == 2
    lab.drain()
    assert lab.token_times("a") == [1, 2, 3, 4, 5]
    assert lab.token_times("b") == lab.token_times("c") == [1, 6]


def test_a_sequence_that_cannot_grow_beside_held_blocks_waits_for_them() -> None:
    lab = Lab(total_blocks=4, hold_lease_s=20.0)
    lab.add("leg", prompt=8, holds_kv=True)
    lab.run(1)
    lab.add("a", prompt=8, output=3)
    lab.drain()
    assert lab.token_times("a") == [2, 22, 23]
    assert lab.finish("a").preemptions == 1


def test_the_counters_do_not_count_recomputed_tokens_as_new() -> None:
    lab = crowded()
    lab.drain()
    snapshot = lab.engine.snapshot()
    assert snapshot.generated_tokens == 8 + 6
    assert snapshot.prompt_tokens == snapshot.prefix_queried_tokens == 8 + 7
