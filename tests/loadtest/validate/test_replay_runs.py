import gzip
import itertools
import os
import sys
from pathlib import Path

import pytest

from loadtest.validate.replay_runs import (
    KV_ROUTER,
    ROUND_ROBIN,
    Latencies,
    ReplayError,
    Setup,
    has_dynamo,
    run_dynamo,
    run_ours,
    unpacked,
)

SHARED = Path(os.environ.get("TIDEGATE_SHARED", Path(__file__).parents[4] / "shared"))
MOONCAKE = SHARED / "data" / "traces" / "mooncake_conversation_trace.jsonl.gz"
FIRST_REQUESTS = 600


def write_rows(path: Path, *rows: str) -> Path:
    path.write_text("".join(row + "\n" for row in rows))
    return path


def row(at_ms: int, tokens: int, output: int, ids: list[int]) -> str:
    return f'{{"timestamp": {at_ms}, "input_length": {tokens}, "output_length": {output}, "hash_ids": {ids}}}'


def test_percentiles_are_values_at_the_nearest_rank() -> None:
    found = Latencies(took_s=1.0, ttft_ms=[4.0, 1.0, 3.0, 2.0], tpot_ms=[5.0])
    # Rank 1.5 of 0..3 is rounded up.
    assert found.percentile("ttft", 0.5) == 3.0
    assert found.percentile("ttft", 0.0) == 1.0
    assert found.percentile("ttft", 0.99) == 4.0
    assert found.percentile("tpot", 0.9) == 5.0


def test_fleets_have_names() -> None:
    assert Setup(prefill=2, decode=3, router=ROUND_ROBIN).name == "2P3D"
    assert Setup(prefill=0, decode=8, router=KV_ROUTER).name == "8 aggregated"


def test_a_python_without_dynamo_is_found_out(tmp_path: Path) -> None:
    trace = write_rows(tmp_path / "trace.jsonl", row(0, 600, 2, [0, 1]))
    assert not has_dynamo(tmp_path / "no-python")
    if has_dynamo(Path(sys.executable)):
        pytest.skip("this very Python has ai-dynamo")
    with pytest.raises(ReplayError, match="dynamo"):
        run_dynamo(Path(sys.executable), trace, Setup(prefill=1, decode=1, router=ROUND_ROBIN))


def test_a_packed_trace_is_unpacked_and_goes_away(tmp_path: Path) -> None:
    packed = tmp_path / "trace.jsonl.gz"
    packed.write_bytes(gzip.compress(b"a line\n"))
    with unpacked(packed) as plain:
        assert plain.read_bytes() == b"a line\n"
    assert not plain.exists()


def test_a_lone_request_takes_its_prefill_its_transfer_and_its_steps(tmp_path: Path) -> None:
    trace = write_rows(tmp_path / "trace.jsonl", row(0, 1000, 3, [0, 1]))
    found = run_ours(trace, Setup(prefill=1, decode=1, router=ROUND_ROBIN))
    prefill_ms = 4.209989e-7 * 1000**2 + 1.518344e-2 * 1000 + 16.50142
    transfer_ms = 1000 * 131_072 / 50e9 * 1e3

    def step_ms(context: int) -> float:
        use = context / (16_384 * 64)
        return 5.74 + 54.01 * use - 25.74 * use * use

    assert found.ttft_ms == [pytest.approx(prefill_ms + transfer_ms + step_ms(1000), rel=1e-6)]
    assert found.tpot_ms == [pytest.approx((step_ms(1001) + step_ms(1002)) / 2, rel=1e-6)]


def test_chance_decides_ties_by_the_seed(tmp_path: Path) -> None:
    rows = [row(at * 40, 2048, 20, list(range(10 * at, 10 * at + 4))) for at in range(60)]
    trace = write_rows(tmp_path / "trace.jsonl", *rows)
    setup = Setup(prefill=3, decode=3, router=KV_ROUTER)
    one, same, other = (run_ours(trace, setup, seed=seed) for seed in (0, 0, 1))
    assert (one.ttft_ms, one.tpot_ms) == (same.ttft_ms, same.tpot_ms)
    assert (one.ttft_ms, one.tpot_ms) != (other.ttft_ms, other.tpot_ms)


@pytest.mark.shared_data
@pytest.mark.skipif(not MOONCAKE.is_file(), reason="needs the Mooncake trace in shared/data/traces")
@pytest.mark.parametrize(
    ("prefill", "decode", "ttft_ms", "tpot_ms"),
    [
        (2, 2, (741.451, 2166.186, 4120.712), (10.518, 14.856, 20.195)),
        (1, 3, (2340.748, 5543.268, 8147.653), (8.215, 11.673, 14.410)),
        (0, 4, (363.823, 1177.042, 2726.654), (9.842, 17.429, 153.138)),
    ],
    ids=["2P2D", "1P3D", "4 aggregated"],
)
def test_percentiles_are_those_of_dynamos_replay(
    tmp_path: Path, prefill: int, decode: int, ttft_ms: tuple[float, ...], tpot_ms: tuple[float, ...]
) -> None:
    """P50, P90 and P99 as ai-dynamo 1.6.1 printed them for the trace's first requests."""
    trace = tmp_path / "trace.jsonl"
    with gzip.open(MOONCAKE) as packed:
        trace.write_bytes(b"".join(itertools.islice(packed, FIRST_REQUESTS)))
    found = run_ours(trace, Setup(prefill=prefill, decode=decode, router=ROUND_ROBIN))
    assert [found.percentile("ttft", share) for share in (0.5, 0.9, 0.99)] == pytest.approx(ttft_ms, rel=0.01)
    assert [found.percentile("tpot", share) for share in (0.5, 0.9, 0.99)] == pytest.approx(tpot_ms, rel=0.01)
