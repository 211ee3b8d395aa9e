import pytest

from tests.loadtest.worker.worker_lab import Lab


@pytest.fixture
async def lab() -> Lab:
    return Lab()
