from collections.abc import Callable

import pytest

from tests.loadtest.engine.engine_lab import Lab


def waiting() -> Lab:
    lab = Lab(max_running=1)
    lab.add("other", prompt=4, output=4)
    lab.add("it", prompt=8)
    lab.run(0.5)
    return lab


def transferring() -> Lab:
    lab = Lab()
    lab.add("it", prompt=8, remote_tokens=8)
    lab.run(0.5)
    return lab


def ready() -> Lab:
    lab = Lab(max_running=1)
    lab.add("it", prompt=8, remote_tokens=8)
    lab.run(2.4)
    lab.add("other", prompt=4, output=4)
    lab.run(2.6)
    return lab


def prefilling() -> Lab:
    lab = Lab()
    lab.add("it", prompt=40)
    lab.run(1.5)
    return lab


def decoding() -> Lab:
    lab = Lab()
    lab.add("it", prompt=8, output=9)
    lab.run(3.5)
    return lab


def preempted() -> Lab:
    lab = Lab(total_blocks=4)
    lab.add("other", prompt=8, output=8)
    lab.add("it", prompt=8, output=6)
    lab.run(1.5)
    return lab


def held() -> Lab:
    lab = Lab()
    lab.add("it", prompt=8, holds_kv=True)
    lab.run(1.5)
    return lab


STATES = (waiting, transferring, ready, prefilling, decoding, preempted, held)


@pytest.mark.parametrize("state", STATES, ids=lambda state: state.__name__)
def test_cancelling_frees_everything_in_every_state(state: Callable[[], Lab]) -> None:
    lab = state()
    told = len(lab.events)
    assert lab.engine.cancel("it", lab.now_s)
    lab.drain()
    assert "it" not in {event.request_id for event in lab.events[told:]}
    snapshot = lab.engine.snapshot()
    assert (lab.used_blocks, snapshot.running, snapshot.waiting) == (0, 0, 0)


@pytest.mark.parametrize("state", STATES, ids=lambda state: state.__name__)
def test_cancelling_twice_does_nothing_the_second_time(state: Callable[[], Lab]) -> None:
    lab = state()
    assert lab.engine.cancel("it", lab.now_s)
    assert not lab.engine.cancel("it", lab.now_s)
    assert not lab.engine.release_held("it", lab.now_s)


@pytest.mark.parametrize("state", STATES, ids=lambda state: state.__name__)
def test_a_cancelled_id_can_be_used_again(state: Callable[[], Lab]) -> None:
    lab = state()
    lab.engine.cancel("it", lab.now_s)
    lab.events.clear()
    lab.add("it", prompt=6, output=2)
    lab.drain()
    assert len(lab.token_times("it")) == 2


def test_an_unknown_or_finished_request_is_left_alone() -> None:
    lab = Lab()
    assert not lab.engine.cancel("never seen", 0.0)
    lab.add("a", prompt=4)
    lab.drain()
    assert not lab.engine.cancel("a", lab.now_s)


def test_what_ended_before_the_cancellation_is_still_told() -> None:
    lab = Lab()
    lab.add("a", prompt=4, output=2)
    lab.run(0)
    assert not lab.engine.cancel("a", 5.0)
    lab.run(5)
    assert lab.token_times("a") == [1, 2]


def test_the_step_under_way_keeps_its_length() -> None:
    lab = Lab()
    lab.add("a", prompt=8, output=3)
    lab.add("b", prompt=8, output=3)
    lab.run(0.5)
    lab.engine.cancel("a", 0.5)
    lab.drain()
    assert lab.token_times("b") == [1, 2, 3]
    assert [step.sequences for step in lab.costs.steps] == [2, 1]


def test_cancelling_the_blocked_head_lets_the_queue_move() -> None:
    lab = Lab(total_blocks=4)
    lab.add("a", prompt=8, output=4)
    lab.add("head", prompt=16)
    lab.add("next", prompt=4)
    lab.run(1.5)
    assert lab.engine.cancel("head", 1.5)
    lab.drain()
    assert lab.token_times("next") == [3]
