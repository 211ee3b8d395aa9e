"""The port that several processes listen on."""

import socket

import pytest

from gateway.commands.processes.ports import listeners, port_held


def test_processes_listen_on_a_port_that_is_held_and_nobody_else_gets_it() -> None:
    with port_held("127.0.0.1", 0) as port:
        (one,), (two,) = listeners("127.0.0.1", port), listeners("127.0.0.1", port)
        with one, two:
            one.listen()
            two.listen()
            with socket.create_connection(("127.0.0.1", port)):
                pass
            with pytest.raises(OSError, match=r"127\.0\.0\.1, port"):
                socket_without_sharing(port)


def socket_without_sharing(port: int) -> None:
    with port_held("127.0.0.1", port):
        pass


def test_a_port_on_which_somebody_listens_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(OSError, match=f"port {port}"), port_held("127.0.0.1", port):
            pass


def test_nobody_is_let_in_while_no_process_listens() -> None:
    with port_held("127.0.0.1", 0) as port, pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))
