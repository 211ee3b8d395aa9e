"""The bench of shared loads, small: that every call is answered, and what it says."""

from pathlib import Path

import pytest

from gateway.fleet.shared import loads, loads_server
from loadtest import bench_shared_loads as bench
from loadtest.replicas.fleet import RedisProcess
from tests.fleet.shared.redis_lab import needs_server


@needs_server
def test_gateways_call_and_hear_each_other(tmp_path: Path) -> None:
    server = RedisProcess(tmp_path)
    server.start()
    try:
        found = bench.measure(server, 4, rounds=3)
    finally:
        server.kill()
    assert (found.gateways, found.calls) == (4, 12)
    assert found.heard_bytes > 100
    assert found.script_us > 0
    assert found.core_share == pytest.approx(found.cpu_us * 1e-6 * 4 / bench.LOAD_S)


def test_it_measures_what_the_gateway_does() -> None:
    assert bench.SCRIPT.read_text(encoding="utf-8") == loads_server.SCRIPT
    assert [key.rpartition(":")[2] for key in bench.KEYS] == list(loads_server.KEYS)
    assert bench.LEAST_S_PER_GATEWAY == loads.LEAST_S_PER_REPLICA
    assert loads_server.LOG_BYTES == bench.LOG_BYTES
    assert bench.WHOLE_BYTES == bench.LOG_BYTES // loads_server.WHOLE_EVERY


def test_a_line_for_each_number_of_gateways() -> None:
    one = bench.Measured(gateways=100, interval_s=0.05, calls=1, script_us=90.0, cpu_us=110.0, heard_bytes=16_000.0)
    shown = bench.table(iter([one]))
    assert [next(iter(column.cells)) for column in shown.columns] == [
        "100",
        "50 ms",
        "90 µs",
        "110 µs",
        "16.0 kB",
        "22.0%",
    ]
