"""The gateway's port, which several processes listen on.

The rule of this module: the parent holds the port without listening, so that it is known to be free before any process
is started and stays the gateway's while none listens; each process binds it anew, and the system deals the connections
out among those that listen.
"""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from gateway.settings import SettingsError

Address = tuple[Any, ...]
"""Host and port, and for IPv6 two numbers more."""


@contextmanager
def port_held(host: str, port: int) -> Iterator[int]:
    """Hold the port: its number, which the system chooses where `port` is 0.

    Raises:
        SettingsError: this system cannot share a port.
        OSError: it is taken, or the address is none of this machine's.
    """
    if not hasattr(socket, "SO_REUSEPORT"):
        raise SettingsError("server.workers: this system cannot share a port among processes (SO_REUSEPORT)")
    with ExitStack() as held:
        for family, address in _addresses(host, port):
            # Two that both share a port are not told of each other: whether another gateway has it is seen without.
            with _bound(family, (address[0], port, *address[2:]), is_shared=False) as probe:
                port = probe.getsockname()[1]
            held.enter_context(_bound(family, (address[0], port, *address[2:]), is_shared=True))
        yield port


def listeners(host: str, port: int) -> list[socket.socket]:
    """A process's own sockets on the shared port, to be listened on; raises OSError."""
    return [_bound(family, address, is_shared=True) for family, address in _addresses(host, port)]


def _addresses(host: str, port: int) -> Iterator[tuple[int, Address]]:
    """All that a host's name stands for, as (family, address)."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    yield from dict.fromkeys((family, address) for family, _, _, _, address in found)


def _bound(family: int, address: Address, *, is_shared: bool) -> socket.socket:
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if is_shared:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        bound.bind(address)
    except OSError as error:
        bound.close()
        raise OSError(error.errno, f"{error.strerror}: {address[0]}, port {address[1]}") from error
    return bound
