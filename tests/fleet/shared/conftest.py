"""One server for all tests that do not harm it, and one each for those that do."""

import time
from collections.abc import Iterator

import pytest

from tests.fleet.shared.redis_lab import LabServer, Place
from tests.fleet.shared.shared_waiting import PATIENCE_S


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


@pytest.fixture(scope="session")
def cluster_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabServer]:
    """A cluster of one node, which has all slots."""
    bus = LabServer(tmp_path_factory.mktemp("bus")).port
    node = LabServer(tmp_path_factory.mktemp("node"), "--cluster-enabled", "yes", "--cluster-port", str(bus))
    node.start()
    with node.client() as client:
        client.cluster("ADDSLOTSRANGE", 0, 16383)
        until_s = time.monotonic() + PATIENCE_S
        while client.cluster("INFO")["cluster_state"] != "ok":
            assert time.monotonic() < until_s, "it never was whole"
            time.sleep(0.02)
    yield node
    node.kill()


@pytest.fixture
def place(shared_server: LabServer) -> Place:
    return Place(shared_server)
