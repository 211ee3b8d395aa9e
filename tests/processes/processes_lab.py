"""Processes that are played: each answers as a test says, and remembers what it was asked."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from gateway.commands.processes.fan_out import FanOut
from gateway.commands.processes.identity import INNER
from gateway.commands.processes.siblings import Answer, Call, Sibling, Siblings
from gateway.wire.errors import ApiError

Answers = Callable[[httpx.Request], httpx.Response]


class Played:
    """One process."""

    def __init__(self, number: int, answer: Answers | None = None) -> None:
        self.answer = answer or (lambda _: httpx.Response(200, json={"process": number}))
        self.asked: list[httpx.Request] = []
        self.sibling = Sibling(number, Path("/nowhere"), httpx.MockTransport(self._answer))

    def _answer(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request)
        return self.answer(request)

    @property
    def calls(self) -> list[str]:
        """What it was asked; what the parent asked in its own name has a star."""
        return [
            f"{'*' if INNER in request.headers else ''}{request.method} {request.url.raw_path.decode()}"
            for request in self.asked
        ]


class Lab:
    """Processes that are there, and the fan-out that calls them."""

    def __init__(self, *answers: Answers | None) -> None:
        self.siblings = Siblings()
        self.processes = [Played(number, answer) for number, answer in enumerate(answers)]
        for process in self.processes:
            self.siblings.add(process.sibling)
        self.copies = 0
        self.fan_out = FanOut(self.siblings, len(answers), reloaded=self._copy)

    def _copy(self) -> None:
        self.copies += 1

    async def call(self, method: str, target: str, body: Any = None, **headers: str) -> Answer | ApiError:
        return await self.fan_out.answer(
            Call(
                method=method,
                path=target.partition("?")[0],
                target=target.encode(),
                headers=[(name.encode(), value.encode()) for name, value in headers.items()],
                body=b"" if body is None else json.dumps(body).encode(),
            )
        )

    @property
    def calls(self) -> list[list[str]]:
        return [process.calls for process in self.processes]


def says(status: int, body: Any = None) -> Answers:
    """Always the same answer."""
    return lambda _: httpx.Response(status, json=body)


def is_silent(_: httpx.Request) -> httpx.Response:
    """No answer."""
    raise httpx.ConnectError("nobody there")
