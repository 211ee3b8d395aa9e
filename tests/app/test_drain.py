"""What signals do to a server."""

import asyncio

import pytest
import uvicorn

from gateway.api.live import Live
from gateway.commands.serve import Drain


class Clockwork:
    """The part of an event loop that `Drain` uses; a test lets its time pass."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.due: list[tuple[float, object]] = []
        monkeypatch.setattr("gateway.commands.serve.asyncio.get_running_loop", lambda: self)

    def call_later(self, delay_s: float, callback: object) -> None:
        self.due.append((delay_s, callback))


def server() -> uvicorn.Server:
    return uvicorn.Server(uvicorn.Config("nothing:app"))


def test_the_first_signal_turns_readiness_off_and_closes_after_the_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    clockwork, served, live = Clockwork(monkeypatch), server(), Live()
    Drain(served, live, delay_s=5.0).stop()
    assert live.draining
    assert not served.should_exit
    ((delay_s, close),) = clockwork.due
    assert delay_s == 5.0
    assert callable(close)
    close()
    assert (served.should_exit, served.force_exit) == (True, False)


def test_without_a_delay_it_closes_at_once() -> None:
    served, live = server(), Live()
    Drain(served, live, delay_s=0.0).stop()
    assert (live.draining, served.should_exit, served.force_exit) == (True, True, False)


def test_one_of_several_processes_drains_once_however_often_it_is_told() -> None:
    served, live = server(), Live()
    drain = Drain(served, live, delay_s=0.0)
    drain.begin()
    served.should_exit = False
    drain.begin()
    assert (live.draining, served.should_exit, served.force_exit) == (True, False, False)


def test_one_of_several_processes_ends_at_once_also_where_it_has_not_begun_to_drain() -> None:
    served, live = server(), Live()
    Drain(served, live, delay_s=5.0).end()
    assert (live.draining, served.should_exit, served.force_exit) == (True, True, True)


async def test_the_second_signal_ends_all_that_is_in_flight() -> None:
    served, live = server(), Live()
    in_flight = asyncio.ensure_future(asyncio.Event().wait())
    served.server_state.tasks.add(in_flight)  # type: ignore[arg-type] # whatever it returns, it never does
    drain = Drain(served, live, delay_s=5.0)
    drain.stop()
    drain.stop()
    assert (served.should_exit, served.force_exit) == (True, True)
    with pytest.raises(asyncio.CancelledError):
        await in_flight
