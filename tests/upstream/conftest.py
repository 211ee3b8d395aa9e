"""The socket tests run on both event loops that the gateway may be served by."""

import asyncio
import sys
from collections.abc import Callable

import pytest

LoopFactories = dict[str, Callable[[], asyncio.AbstractEventLoop]]


def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> LoopFactories:
    factories: LoopFactories = {"asyncio": asyncio.new_event_loop}
    if item.path.name == "test_sockets.py" and sys.platform != "win32":
        import uvloop  # noqa: PLC0415 - not there on Windows

        factories["uvloop"] = uvloop.new_event_loop
    return factories
