"""What the parent answers to its processes: what they begin with, and the metrics of all.

The rule of this module: it is asked over a socket that only they can open. Nothing that it answers waits long for one
of them.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from gateway.api.asgi import Receive, Scope, Send, read_body, send_json
from gateway.commands.processes.changes import Change
from gateway.commands.processes.fan_out import FanOut
from gateway.commands.processes.siblings import Sibling, Siblings
from gateway.telemetry.exposition import families_of
from gateway.telemetry.merging import Family, Together, unpacked
from gateway.telemetry.state import read_processes

SCRAPE_S: Final = 1.0
"""A process that has not shown its metrics by then is left out."""
JOIN, METRICS = "/join", "/metrics"
MAX_BODY_BYTES: Final = 2**16


class Joins(msgspec.Struct, frozen=True):
    """A process says that it is there."""

    number: int
    socket: str


class Beginning(msgspec.Struct, frozen=True):
    """What it must do to be as its siblings."""

    changes: list[Change]
    must_reload: bool
    """The settings were read anew since it was started."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """For `read_processes`."""

    answering: int
    restarts: int
    misses: int


class Hub:
    """Answers the processes.

    Args:
        siblings: those that are there.
        fan_out: what has been changed.
        serves: is told the number of each that begins to serve.
        restarts: how often one was started again.
    """

    def __init__(
        self, siblings: Siblings, fan_out: FanOut, *, serves: Callable[[int], None], restarts: Callable[[], int]
    ) -> None:
        self._siblings = siblings
        self._fan_out = fan_out
        self._serves = serves
        self._restarts = restarts
        self._together = Together()
        self._misses = 0
        self._reloads_before: dict[int, int] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        if scope["path"] == JOIN:
            body = await read_body(scope, receive, MAX_BODY_BYTES)
            assert isinstance(body, bytes)
            beginning = await self.join(msgspec.json.decode(body, type=Joins))
            await send_json(send, 200, [(b"content-type", b"application/json")], msgspec.json.encode(beginning))
        else:
            accept = dict(scope["headers"]).get(b"accept", b"").decode("latin-1")
            content, content_type = await self.scrape(accept)
            await send_json(send, 200, [(b"content-type", content_type.encode())], content)

    def begins(self, number: int) -> None:
        """A process is about to be started: it will read the settings as they are now."""
        self._reloads_before[number] = self._fan_out.reloads

    def ended(self, number: int) -> None:
        """A process has ended."""
        self._siblings.ended(number)
        self._together.ended(number)

    async def join(self, joins: Joins) -> Beginning:
        """Call this process too, from now on."""
        async with self._fan_out.one_at_a_time:
            self._siblings.add(Sibling(joins.number, Path(joins.socket)))
            self._serves(joins.number)
            must_reload = self._fan_out.reloads > self._reloads_before.get(joins.number, 0)
            return Beginning(changes=self._fan_out.changes.all(), must_reload=must_reload)

    async def scrape(self, accept_header: str) -> tuple[bytes, str]:
        """The metrics of all processes: the body and its content type."""
        asked = [*self._siblings]
        found = await asyncio.gather(*map(_metrics_of, asked))
        # What one of them showed before it ended, while others were waited for, would count as its successor's.
        present = [
            (sibling, families) for sibling, families in zip(asked, found, strict=True) if sibling in self._siblings
        ]
        answers = {sibling.number: families for sibling, families in present if families is not None}
        self._misses += len(present) - len(answers)
        seen = _Seen(len(answers), self._restarts(), self._misses)
        self._together.heard(answers, families_of(read_processes(seen)))
        return self._together.render(accept_header)


async def _metrics_of(sibling: Sibling) -> list[Family] | None:
    answer = await sibling.order("GET", METRICS, SCRAPE_S)
    return None if answer is None or not answer.is_well else unpacked(answer.body)
