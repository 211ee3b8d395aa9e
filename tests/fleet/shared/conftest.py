"""One server for all tests that do not harm it, and one each for those that do."""

from collections.abc import Iterator

import pytest

from tests.fleet.shared.redis_lab import LabServer, Place


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabServer]:
    server = LabServer(tmp_path_factory.mktemp("redis"))
    server.start()
    yield server
    server.kill()


@pytest.fixture
def own_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabServer]:
    server = LabServer(tmp_path_factory.mktemp("redis"))
    server.start()
    yield server
    server.kill()


@pytest.fixture
def place(shared_server: LabServer) -> Place:
    return Place(shared_server)
