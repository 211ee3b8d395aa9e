"""The remote path's gap, measured on a stand-in for a gateway."""

import itertools
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from loadtest.plane import hand_over
from loadtest.plane.hand_over import (
    HandOverError,
    TimedWorker,
    framed,
    is_whole,
    measure_hand_overs,
    measure_hops,
    timed_pair,
)

CORE = max(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("data", "whole"),
    [
        (b"GET / HTTP/1.1\r\n", False),
        (b"GET / HTTP/1.1\r\n\r\n", True),
        (b"POST / HTTP/1.1\r\nContent-Length: 2\r\n\r\na", False),
        (b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\nab", True),
    ],
)
def test_a_message_is_whole_with_all_of_its_body(data: bytes, whole: bool) -> None:
    assert is_whole(data) is whole


def exchange(line: socket.socket, data: bytes) -> bytes:
    line.sendall(data)
    answer = line.recv(65536)
    while not is_whole(answer):
        answer += line.recv(65536)
    return answer


@contextmanager
def relay(pair: tuple[TimedWorker, TimedWorker], legs: Callable[[int], tuple[int, ...]]) -> Iterator[int]:
    """Sends each request to the workers that `legs` names for its number, one after another; the last one's answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        lines = [socket.create_connection(("127.0.0.1", each.worker.port)) for each in pair]

        def serve() -> None:
            client, _ = listener.accept()
            with client:
                for number in itertools.count():
                    data = client.recv(65536)
                    while data and not is_whole(data):
                        data += client.recv(65536)
                    if not data:
                        return
                    for leg in legs(number):
                        answer = exchange(lines[leg], data)
                    client.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()[1]
        thread.join()
        for line in lines:
            line.close()


@pytest.fixture
def cold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hand_over, "WARM_UP_REQUESTS", 2)


@pytest.mark.e2e
@pytest.mark.usefixtures("cold")
def test_each_request_has_a_gap_and_each_gap_a_hop() -> None:
    with timed_pair() as pair, relay(pair, lambda _: (0, 1)) as port:
        found = measure_hand_overs("stand-in", port, pair, requests=5, echo_core=CORE)
    assert found.proxy == "stand-in"
    assert len(found.gaps_us) == len(found.hops_us) == 5
    assert min(found.hops_us) > 0.0


@pytest.mark.e2e
@pytest.mark.usefixtures("cold")
def test_a_request_that_did_not_go_both_ways_is_no_gap() -> None:
    with (
        timed_pair() as pair,
        relay(pair, lambda number: (0, 1) if number < 3 else (1,)) as port,
        pytest.raises(HandOverError, match="both workers"),
    ):
        measure_hand_overs("stand-in", port, pair, requests=5, echo_core=CORE)


@pytest.mark.e2e
def test_workers_hand_over_and_answer_questions() -> None:
    with timed_pair() as (prefill, decode):
        with socket.create_connection(("127.0.0.1", prefill.worker.port)) as line:
            assert b"kv_transfer_params" in exchange(line, b"POST / HTTP/1.1\r\ncontent-length: 2\r\n\r\n{}")
            assert prefill.requests == 1
            assert b"kv_transfer_params" not in exchange(line, b"GET /health HTTP/1.1\r\n\r\n")
        with socket.create_connection(("127.0.0.1", decode.worker.port)) as line:
            assert b"kv_transfer_params" not in exchange(line, b"POST / HTTP/1.1\r\ncontent-length: 2\r\n\r\n{}")
    assert (prefill.requests, decode.requests) == (1, 1)


@pytest.mark.e2e
@pytest.mark.usefixtures("cold")
def test_an_error_is_no_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, timed_pair() as pair:

        def refuse() -> None:
            client, _ = listener.accept()
            with client:
                client.recv(65536)
                client.sendall(framed(b"{}").replace(b"200 OK", b"503 No"))

        thread = threading.Thread(target=refuse)
        thread.start()
        with pytest.raises(HandOverError, match="503"):
            measure_hand_overs("stand-in", listener.getsockname()[1], pair, requests=1, echo_core=CORE)
        thread.join()


@pytest.mark.e2e
@pytest.mark.usefixtures("cold")
def test_bare_hops_are_measured_alone() -> None:
    assert len(measure_hops(3, CORE)) == 3
