from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.conformance.planes import Plane, plane_of


@pytest_asyncio.fixture(scope="session", loop_scope="session", params=["asgi", "auto"])
async def any_plane(request: pytest.FixtureRequest) -> AsyncIterator[Plane]:
    async with plane_of(request.param) as plane:
        yield plane


@pytest_asyncio.fixture(loop_scope="session")
async def plane(any_plane: Plane) -> AsyncIterator[Plane]:
    """One gateway for all cases of a data plane; each finds it settled, and leaves it so."""
    any_plane.begin()
    yield any_plane
    any_plane.worker.release()
    await any_plane.check_settled()
