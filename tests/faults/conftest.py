from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from gateway import app
from gateway.telemetry import line_queue
from tests.faults.fault_rig import PATIENCE_S, Closing, KeptTransport, Rig, running_fleet


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def closing() -> AsyncIterator[Closing]:
    closing = Closing()
    yield closing
    await closing.wait()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def transport() -> AsyncIterator[KeptTransport]:
    transport = KeptTransport()
    yield transport
    await transport.close()


@pytest_asyncio.fixture(loop_scope="session")
async def rig(
    tmp_path: Path,
    closing: Closing,
    transport: KeptTransport,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[Rig]:
    """Workers without faults; an indirect parameter has further settings for them."""
    monkeypatch.setattr(line_queue, "FLUSH_S", 0.01)
    # No test here calls the admin application, and making it is what takes a gateway longest.
    monkeypatch.setattr(app, "build_admin", lambda _: None)
    async with AsyncExitStack() as stack:
        client = httpx.AsyncClient(timeout=PATIENCE_S, trust_env=False, transport=transport)
        await stack.enter_async_context(client)
        fleet = await stack.enter_async_context(running_fleet(client, closing, **getattr(request, "param", {})))
        yield Rig(fleet, stack, tmp_path, closing, transport)
