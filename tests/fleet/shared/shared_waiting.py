"""Waiting for a condition with an end, and making sure that nothing waits."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")
PATIENCE_S = 20.0


async def until(condition: Callable[[], bool], what: str = "the condition") -> None:
    """Wait for a condition; the test fails where it does not come true."""
    until_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < until_s, f"it never came true: {what}"
        await asyncio.sleep(0.002)


def at_once(asked: Coroutine[Any, Any, _T]) -> _T:
    """The answer of a call that waits for nothing; the test fails where it does wait."""
    try:
        asked.send(None)
    except StopIteration as done:
        answer: _T = done.value
        return answer
    asked.close()
    raise AssertionError("it waits")
