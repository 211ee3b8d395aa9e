"""The remote path's gap: how long the gateway takes from the prefill answer to the decode request.

The rule of this module: both workers and the client are threads of this process, with blocking sockets and one clock;
one request at a time, over connections that are warm. Nothing is subtracted: the gap holds two hops over loopback, and
what those cost alone is measured beside it.
"""

import contextlib
import itertools
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from time import perf_counter_ns

import msgspec

from gateway.core.types import Role
from loadtest.plane.building import hand_over_tail
from loadtest.plane.echo import READ_BYTES
from loadtest.plane.processes import end, pinned_command
from loadtest.plane.proxies import API_KEY, MODEL, Worker
from loadtest.plane.results import HandOver

WARM_UP_REQUESTS = 50
TIMEOUT_S = 10.0
NANOS_PER_MICRO = 1e3
PROMPT_WORDS = 80

_USAGE = b'"usage":{"prompt_tokens":100,"total_tokens":101,"completion_tokens":1}'
_ANSWER = (
    b'{"id":"chatcmpl-1","object":"chat.completion","created":1700000000,"model":"mock","choices":[{"index":0,'
    b'"message":{"role":"assistant","content":"a"},"finish_reason":"length"}],' + _USAGE
)
_DECODED = _ANSWER + b"}"
_PREFILLED = _ANSWER + hand_over_tail().encode() + b"}"
_LISTED = b'{"object":"list","data":[]}'


class HandOverError(RuntimeError):
    """A request did not take the remote path, or got no answer."""


class TimedWorker:
    """A worker that notes when a request's first byte has come, and when its answer has been written."""

    def __init__(self, name: str, role: Role) -> None:
        self._answer = _PREFILLED if role is Role.PREFILL else _DECODED
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.worker = Worker(name=name, role=role, port=self._listener.getsockname()[1])
        self.requests = 0
        self.came_ns = 0
        """When the first byte of the last request came."""
        self.written_ns = 0
        """When the last answer had been written."""
        self.written = threading.Semaphore(0)
        """One for each answer: whoever asked may have it before that is noted."""
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Take no connection any more; those that are open end with their other side."""
        # A thread that waits in accept() would hold a closed socket open.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                line, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(line,), daemon=True).start()

    def _serve(self, line: socket.socket) -> None:
        with line, contextlib.suppress(OSError):
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while data := line.recv(READ_BYTES):
                came_ns = perf_counter_ns()
                while not is_whole(data):
                    data += line.recv(READ_BYTES)
                if not data.startswith(b"POST"):
                    line.sendall(framed(_LISTED))
                    continue
                self.requests, self.came_ns = self.requests + 1, came_ns
                line.sendall(framed(self._answer))
                self.written_ns = perf_counter_ns()
                self.written.release()


def is_whole(data: bytes) -> bool:
    """Whether a request, or an answer with its length, has come wholly."""
    head, end_of_head, body = data.partition(b"\r\n\r\n")
    if not end_of_head:
        return False
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return len(body) >= int(value)
    return True


def framed(body: bytes) -> bytes:
    """An answer of JSON."""
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)


@contextlib.contextmanager
def timed_pair() -> Iterator[tuple[TimedWorker, TimedWorker]]:
    """A prefill and a decode worker in this process."""
    prefill, decode = TimedWorker("prefill-0", Role.PREFILL), TimedWorker("decode-0", Role.DECODE)
    try:
        yield prefill, decode
    finally:
        prefill.close()
        decode.close()


def measure_hand_overs(
    name: str, port: int, pair: tuple[TimedWorker, TimedWorker], *, requests: int, echo_core: int
) -> HandOver:
    """So many gaps, and as many bare hops; raises HandOverError."""
    prefill, decode = pair
    gaps_us, numbers = [], itertools.count()
    with socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S) as line:
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for number in itertools.islice(numbers, WARM_UP_REQUESTS + requests):
            before = prefill.requests, decode.requests
            _ask(line, port, number)
            if (prefill.requests, decode.requests) != (before[0] + 1, before[1] + 1):
                raise HandOverError(f"{name}: a request did not go to both workers, once each")
            prefill.written.acquire(timeout=TIMEOUT_S)
            if number >= WARM_UP_REQUESTS:
                gaps_us.append((decode.came_ns - prefill.written_ns) / NANOS_PER_MICRO)
    return HandOver(proxy=name, gaps_us=gaps_us, hops_us=measure_hops(requests, echo_core))


def measure_hops(count: int, core: int) -> list[float]:
    """Microseconds there and back through a process that only echoes."""
    command = pinned_command([sys.executable, "-m", "loadtest.plane.echo"], core)
    process = subprocess.Popen(command, stdout=subprocess.PIPE)  # noqa: S603 (our own module)
    try:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        with socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S) as line:
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return [_hop_us(line) for _ in range(WARM_UP_REQUESTS + count)][WARM_UP_REQUESTS:]
    finally:
        end(process)
        if process.stdout is not None:
            process.stdout.close()


def _hop_us(line: socket.socket) -> float:
    message = framed(_PREFILLED)
    line.sendall(message)
    written_ns = perf_counter_ns()
    left = len(message) - len(line.recv(READ_BYTES))
    came_ns = perf_counter_ns()
    while left > 0:
        left -= len(line.recv(READ_BYTES))
    return (came_ns - written_ns) / NANOS_PER_MICRO


def _ask(line: socket.socket, port: int, number: int) -> None:
    # A prompt of its own each: the turns of one conversation stay where they are.
    text = f"{number} " * PROMPT_WORDS
    body = msgspec.json.encode({"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": 8})
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\nauthorization: Bearer {API_KEY}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    line.sendall(head.encode() + body)
    answer = line.recv(READ_BYTES)
    while answer and not is_whole(answer):
        more = line.recv(READ_BYTES)
        if not more:
            break
        answer += more
    if not answer.startswith(b"HTTP/1.1 200"):
        raise HandOverError(f"the answer was {answer[:200]!r}")
