from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from gateway.telemetry import line_queue
from tests.faults.fault_rig import PATIENCE_S, Closing, Rig, running_fleet


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def closing() -> AsyncIterator[Closing]:
    closing = Closing()
    yield closing
    await closing.wait()


@pytest_asyncio.fixture(loop_scope="module")
async def rig(
    tmp_path: Path, closing: Closing, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Rig]:
    """Workers without faults; an indirect parameter has further settings for them."""
    monkeypatch.setattr(line_queue, "FLUSH_S", 0.01)
    limits = httpx.Limits(max_keepalive_connections=0)
    async with AsyncExitStack() as stack:
        client = httpx.AsyncClient(timeout=PATIENCE_S, trust_env=False, verify=False, limits=limits)
        await stack.enter_async_context(client)
        fleet = await stack.enter_async_context(running_fleet(client, closing, **getattr(request, "param", {})))
        yield Rig(fleet, stack, tmp_path, closing)
