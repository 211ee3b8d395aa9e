from loadtest.engine.types import EngineRequest, RequestFinished, TokenMade, TransferFinished
from tests.loadtest.engine.engine_lab import Lab


def test_a_prefill_leg_frees_its_slot_and_keeps_its_blocks() -> None:
    lab = Lab(max_running=1)
    lab.add("leg", prompt=8, holds_kv=True)
    lab.add("next", prompt=8)
    lab.drain()
    assert lab.finish("leg").at_s == 1
    assert lab.token_times("next") == [2]


def test_held_blocks_are_freed_on_release_and_stay_cached() -> None:
    lab = Lab()
    lab.add("leg", prompt=8, text=1, holds_kv=True)
    lab.run(1)
    assert lab.used_blocks == 2
    assert lab.engine.release_held("leg", 1.0)
    assert lab.used_blocks == 0
    assert not lab.engine.release_held("leg", 1.0)
    lab.add("again", prompt=9, text=1)
    lab.drain()
    assert lab.finish("again").cached_tokens == 8


def test_a_leg_that_has_not_finished_holds_nothing_to_release() -> None:
    lab = Lab()
    lab.add("leg", prompt=8, holds_kv=True)
    assert not lab.engine.release_held("leg", 0.5)
    assert not lab.engine.release_held("unknown", 0.5)
    lab.run(1)
    assert lab.engine.release_held("leg", 1.0)


def test_held_blocks_are_given_up_when_the_lease_ends() -> None:
    lab = Lab()
    lab.add("leg", prompt=8, holds_kv=True)
    lab.run(1)
    assert lab.engine.next_event_at_s() == 31
    lab.run(30.9)
    assert lab.used_blocks == 2
    lab.run(31)
    assert lab.used_blocks == 0
    assert not lab.engine.release_held("leg", 31.0)


def test_the_queue_moves_when_held_blocks_are_released() -> None:
    lab = Lab(total_blocks=3)
    lab.add("leg", prompt=8, holds_kv=True)
    lab.run(1)
    lab.add("next", prompt=8)
    lab.run(5)
    assert lab.token_times("next") == []
    lab.engine.release_held("leg", 5.0)
    lab.drain()
    assert lab.token_times("next") == [6]


def test_a_decode_leg_waits_for_its_transfer_and_then_computes_one_token() -> None:
    lab = Lab()
    lab.add("leg", prompt=8, output=2, remote_tokens=8)
    lab.drain()
    transfer_s = 0.5 + 8 * 10 / 40
    assert lab.events == [
        TransferFinished(at_s=transfer_s, request_id="leg"),
        TokenMade(at_s=transfer_s + 1, request_id="leg", index=0),
        TokenMade(at_s=transfer_s + 2, request_id="leg", index=1),
        lab.finish("leg"),
    ]
    assert isinstance(lab.finish("leg"), RequestFinished)
    first = lab.costs.steps[0]
    assert (first.prefill, first.decode_sequences, first.decode_context_tokens) == ((), 1, 8)


def test_blocks_are_reserved_while_the_transfer_runs() -> None:
    lab = Lab()
    lab.add("leg", prompt=9, remote_tokens=9)
    lab.run(0.1)
    snapshot = lab.engine.snapshot()
    assert (lab.used_blocks, snapshot.running, snapshot.waiting) == (3, 0, 1)


def test_a_transfer_starts_between_steps_and_joins_between_steps() -> None:
    lab = Lab()
    lab.add("busy", prompt=8, output=9)
    lab.run(0.25)
    lab.add("leg", prompt=8, remote_tokens=8)
    lab.drain()
    assert lab.arrival_s("leg") == 1 + 2.5
    assert lab.token_times("leg") == [5]


def test_only_what_is_not_cached_here_is_transferred() -> None:
    lab = Lab()
    lab.add("before", prompt=8, text=1)
    lab.run(1)
    lab.add("leg", prompt=12, text=1, remote_tokens=12)
    lab.drain()
    assert lab.arrival_s("leg") == 1 + 0.5 + 4 * 10 / 40
    assert lab.engine.snapshot().remote_kv_tokens == 4
    assert lab.finish("leg").cached_tokens == 8


def test_a_prompt_that_is_cached_here_still_tells_its_source() -> None:
    lab = Lab()
    lab.add("before", prompt=12, text=1)
    lab.run(1)
    lab.add("leg", prompt=9, text=1, remote_tokens=8)
    lab.drain()
    assert lab.arrival_s("leg") == 1.5
    assert lab.engine.snapshot().remote_kv_tokens == 0


def test_what_was_not_transferred_is_computed_here() -> None:
    lab = Lab()
    lab.add("leg", prompt=14, remote_tokens=8)
    lab.drain()
    assert lab.costs.steps[0].prefill == ((6, 8),)


def test_transferred_blocks_are_reusable_once_they_have_arrived() -> None:
    lab = Lab()
    lab.add("leg", prompt=8, text=1, output=20, remote_tokens=8)
    lab.run(0.25)
    lab.add("too early", prompt=9, text=1)
    lab.run(3)
    lab.add("in time", prompt=9, text=1)
    lab.drain()
    assert lab.finish("too early").cached_tokens == 0
    assert lab.finish("in time").cached_tokens == 8


def test_what_arrived_stays_cached_when_its_leg_is_cancelled() -> None:
    lab = Lab(max_running=1)
    lab.add("leg", prompt=8, text=1, remote_tokens=8)
    lab.run(2.4)
    lab.add("busy", prompt=4, output=2)
    lab.run(2.6)
    assert lab.engine.cancel("leg", 2.6)
    lab.add("again", prompt=9, text=1)
    lab.drain()
    assert lab.finish("again").cached_tokens == 8


def test_arrived_legs_go_before_the_queue_whose_head_may_wait_for_their_blocks() -> None:
    lab = Lab(total_blocks=6, max_running=1)
    lab.add("leg", prompt=8, output=2, remote_tokens=8)
    lab.add("busy", prompt=4, output=5)
    lab.add("head", prompt=20)
    lab.drain()
    assert lab.token_times("busy")[-1] == 5
    assert lab.token_times("leg") == [6, 7]
    assert lab.token_times("head") == [9]


def test_transfers_follow_one_another_over_a_worker_s_link() -> None:
    lab = Lab()
    lab.add("long", prompt=16, remote_tokens=16)
    lab.add("short", prompt=4, remote_tokens=4)
    lab.drain()
    assert lab.arrival_s("long") == 0.5 + 4
    assert lab.arrival_s("short") == 4 + 0.5 + 1


def test_links_can_be_so_wide_that_transfers_run_side_by_side() -> None:
    lab = Lab(transfers_share_link=False)
    lab.add("long", prompt=16, remote_tokens=16)
    lab.add("short", prompt=4, remote_tokens=4)
    lab.drain()
    assert lab.arrival_s("short") == 1.5
    assert lab.arrival_s("long") == 4.5


def test_a_transfer_waits_for_the_link_of_its_source_too() -> None:
    source, one, other = Lab().engine.link, Lab(), Lab()
    for lab in (one, other):
        request = EngineRequest(request_id="leg", prompt_tokens=8, output_tokens=1, remote_tokens=8)
        lab.engine.add(request, 0.0, source=source)
        lab.run(0.0)
    one.drain()
    other.drain()
    assert one.arrival_s("leg") == 2.5
    assert other.arrival_s("leg") == 4.5


def test_a_worker_may_reserve_for_one_leg_between_two_steps() -> None:
    lab = Lab(reservations_per_step=1, transfers_share_link=False)
    lab.add("busy", prompt=4, output=9)
    lab.run(0.5)
    for name in ("first", "second"):
        lab.add(name, prompt=8, remote_tokens=8)
    lab.drain()
    assert (lab.arrival_s("first"), lab.arrival_s("second")) == (1 + 2.5, 2 + 2.5)


def test_a_whole_prompt_may_be_transferred_whatever_is_cached() -> None:
    lab = Lab(transfers_whole_prompt=True)
    lab.add("before", prompt=8, text=1)
    lab.run(1)
    lab.add("leg", prompt=12, text=1, remote_tokens=12)
    lab.drain()
    assert lab.arrival_s("leg") == 1 + 0.5 + 12 * 10 / 40


def test_a_decode_leg_that_is_preempted_computes_its_prompt_itself() -> None:
    lab = Lab(total_blocks=4)
    lab.add("busy", prompt=4, output=9)
    lab.add("leg", prompt=8, output=3, remote_tokens=8)
    lab.drain()
    assert lab.finish("leg").preemptions == 1
    assert lab.token_times("leg")[0] == 4
    assert lab.engine.snapshot().remote_kv_tokens == 8
    assert any(new >= 8 for step in lab.costs.steps[1:] for new, _ in step.prefill)
