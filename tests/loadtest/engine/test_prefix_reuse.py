from tests.loadtest.engine.engine_lab import Lab, chain


def test_a_second_prompt_computes_only_what_the_first_did_not() -> None:
    lab = Lab()
    lab.add("a", prompt=14, text=1)
    lab.drain()
    lab.add("b", prompt=15, text=1)
    lab.drain()
    assert lab.costs.steps[-1].prefill == ((3, 12),)
    assert lab.finish("b").cached_tokens == 12


def test_reuse_ends_at_the_first_block_that_differs() -> None:
    lab = Lab()
    lab.add("a", prompt=16, block_hashes=(1, 2, 3, 4))
    lab.drain()
    lab.add("b", prompt=16, block_hashes=(1, 2, 9, 4))
    lab.drain()
    assert lab.finish("b").cached_tokens == 8


def test_a_prompt_that_is_cached_as_a_whole_computes_its_last_block_again() -> None:
    lab = Lab()
    lab.add("a", prompt=12, text=1)
    lab.drain()
    lab.add("b", prompt=12, text=1)
    lab.drain()
    assert lab.costs.steps[-1].prefill == ((4, 8),)
    assert lab.finish("b").cached_tokens == 8


def test_a_single_uncached_token_costs_like_a_decode() -> None:
    lab = Lab()
    lab.add("a", prompt=12, text=1)
    lab.drain()
    lab.add("b", prompt=13, text=1)
    lab.drain()
    step = lab.costs.steps[-1]
    assert (step.prefill, step.decode_sequences, step.decode_context_tokens) == ((), 1, 13)


def test_blocks_can_be_reused_within_the_step_that_computes_them() -> None:
    lab = Lab()
    lab.add("a", prompt=9, text=1)
    lab.add("b", prompt=9, text=1)
    lab.drain()
    assert lab.costs.steps[0].prefill == ((9, 0),)
    assert lab.costs.steps[0].decode_sequences == 1
    assert lab.token_times("a") == lab.token_times("b") == [1]
    assert lab.finish("b").cached_tokens == 8


def test_blocks_of_a_chunk_that_is_not_scheduled_yet_cannot_be_reused() -> None:
    lab = Lab(max_batched_tokens=10)
    lab.add("a", prompt=24, text=1)
    lab.run(0)
    lab.run(1)
    lab.run(2)
    lab.add("b", prompt=24, text=1)
    lab.drain()
    assert [step.prefill for step in lab.costs.steps] == [((10, 0),), ((10, 10),), ((4, 20),), ((4, 20),)]
    assert lab.finish("b").cached_tokens == 20


def test_a_block_completed_by_a_one_token_chunk_is_known_too() -> None:
    lab = Lab(max_batched_tokens=7, max_running=7)
    lab.add("a", prompt=8, text=1)
    lab.drain()
    lab.add("b", prompt=9, text=1)
    lab.drain()
    assert lab.finish("b").cached_tokens == 8


def test_shared_blocks_are_counted_once() -> None:
    lab = Lab()
    lab.add("a", prompt=8, output=5, text=1)
    lab.add("b", prompt=9, output=5, text=1)
    lab.run(0.5)
    assert lab.used_blocks == 2 + 1


def test_generated_tokens_push_older_content_out() -> None:
    lab = Lab(total_blocks=5)
    lab.add("a", prompt=8, text=1)
    lab.drain()
    lab.add("b", prompt=4, output=13, text=2)
    lab.drain()
    lab.add("c", prompt=8, text=1)
    lab.add("d", prompt=9, text=1)
    lab.drain()
    assert lab.finish("c").cached_tokens == 4
    assert lab.finish("d").cached_tokens == 8


def test_hit_counters_cover_each_request_once() -> None:
    lab = Lab()
    lab.add("a", prompt=10, text=1)
    lab.drain()
    lab.add("b", prompt=11, block_hashes=chain(1, 2))
    lab.drain()
    snapshot = lab.engine.snapshot()
    assert (snapshot.prefix_queried_tokens, snapshot.prefix_hit_tokens) == (21, 8)
