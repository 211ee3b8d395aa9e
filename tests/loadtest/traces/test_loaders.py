import gzip
import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.traces.loaders import MOONCAKE_TICK_S, SYNTHETIC_REQUESTS, load_trace
from loadtest.traces.types import TraceError

REAL_TRACES = Path(__file__).parents[4] / "shared" / "data" / "traces"
MOONCAKE = REAL_TRACES / "mooncake_conversation_trace.jsonl.gz"
AZURE = REAL_TRACES / "azure2023_conv.csv.gz"

AZURE_ROWS = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
2023-11-16 18:16:46.6805900,879,55
"""


def row(
    timestamp: float, *, input_length: int = 700, output_length: int = 5, hash_ids: tuple[int, ...] = (0, 1)
) -> str:
    return json.dumps(
        {
            "timestamp": timestamp,
            "input_length": input_length,
            "output_length": output_length,
            "hash_ids": hash_ids,
        }
    )


@pytest.fixture
def mooncake(tmp_path: Path) -> Callable[..., str]:
    def write(*rows: str) -> str:
        path = tmp_path / "trace.jsonl"
        path.write_text("\n".join(rows) + "\n")
        return f"mooncake:{path}"

    return write


def test_a_mooncake_row_becomes_a_request(mooncake: Callable[..., str]) -> None:
    (request,) = load_trace(mooncake(row(1500, input_length=1300, output_length=7, hash_ids=(0, 4, 9))))
    assert request.arrival_s == 1.5
    assert (request.input_tokens, request.output_tokens) == (1300, 7)
    assert request.hash_ids == (0, 4, 9)
    assert request.block_tokens == 512
    assert request.session is None


def test_requests_of_one_tick_are_spread_over_it_in_order(mooncake: Callable[..., str]) -> None:
    spec = mooncake(*(row(3000 * tick) for tick in range(4) for _ in range(50)))
    arrivals_s = [request.arrival_s for request in load_trace(spec, seed=3)]
    assert arrivals_s == sorted(arrivals_s)
    assert [int(at_s // MOONCAKE_TICK_S) for at_s in arrivals_s] == [tick for tick in range(4) for _ in range(50)]
    in_tick_s = [at_s % MOONCAKE_TICK_S for at_s in arrivals_s]
    assert 1.2 < sum(in_tick_s) / len(in_tick_s) < 1.8
    assert len(set(arrivals_s)) == 200


def test_a_tick_never_reaches_past_the_next_one(mooncake: Callable[..., str]) -> None:
    spec = mooncake(*[row(0)] * 20, *[row(2999)] * 20)
    arrivals_s = [request.arrival_s for request in load_trace(spec)]
    assert max(arrivals_s[:20]) <= 2.999 <= min(arrivals_s[20:])


def test_timestamps_of_one_request_each_are_kept(mooncake: Callable[..., str]) -> None:
    spec = mooncake(row(0), row(120), row(4321))
    assert [request.arrival_s for request in load_trace(spec)] == [0.0, 0.12, 4.321]


def test_the_seed_alone_decides_the_spread(mooncake: Callable[..., str]) -> None:
    spec = mooncake(*[row(0)] * 10)
    assert load_trace(spec, seed=1) == load_trace(spec, seed=1)
    assert load_trace(spec, seed=1) != load_trace(spec, seed=2)


@given(limit=st.integers(1, 40))
def test_a_limit_takes_the_first_arrivals_of_the_whole(limit: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("trace") / "trace.jsonl"
    path.write_text("\n".join(row(3000 * (n // 7), input_length=100 + n) for n in range(40)))
    assert load_trace(f"mooncake:{path}", limit=limit) == load_trace(f"mooncake:{path}")[:limit]


def test_what_lies_well_beyond_the_limit_is_not_read(mooncake: Callable[..., str]) -> None:
    spec = mooncake(*(row(3000 * tick) for tick in range(5)), "not json")
    assert len(load_trace(spec, limit=2)) == 2


def test_the_rate_scale_divides_arrivals(mooncake: Callable[..., str]) -> None:
    spec = mooncake(row(0), row(3000))
    assert [request.arrival_s for request in load_trace(spec, rate_scale=4)] == [0.0, 0.75]


def test_gzip_is_recognised_by_content(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_bytes(gzip.compress(row(0).encode()))
    assert len(load_trace(f"mooncake:{path}")) == 1


def test_azure_arrivals_count_from_the_first_row(tmp_path: Path) -> None:
    path = tmp_path / "azure.csv"
    path.write_text(AZURE_ROWS.replace("\n", "\r\n"))
    requests = load_trace(f"azure:{path}")
    assert [request.arrival_s for request in requests] == pytest.approx([0.0, 4.314579, 60.0])
    assert [request.input_tokens for request in requests] == [374, 396, 879]
    assert [request.output_tokens for request in requests] == [44, 109, 55]
    assert all(request.hash_ids == () for request in requests)


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        ((row(0), "{"), r"trace\.jsonl:2: "),
        ((row(0), '{"timestamp": 1, "input_length": "x"}'), r"trace\.jsonl:2: .*input_length"),
        ((row(0), "", '{"timestamp": 1}'), r"trace\.jsonl:3: .*missing required field"),
        ((row(5000), row(4000)), r"trace\.jsonl:2: the timestamp lies before"),
        ((row(0, input_length=0),), r"trace\.jsonl:1: lengths must be at least 1"),
        ((row(0, output_length=-3),), r"trace\.jsonl:1: lengths must be at least 1"),
        ((), r"no requests"),
    ],
)
def test_a_bad_mooncake_row_is_named(mooncake: Callable[..., str], rows: tuple[str, ...], complaint: str) -> None:
    with pytest.raises(TraceError, match=complaint):
        load_trace(mooncake(*rows))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (AZURE_ROWS.replace("396", "many"), r"azure\.csv:3: "),
        (AZURE_ROWS.replace("2023-11-16 18:15:50.9951690", "yesterday"), r"azure\.csv:3: "),
        (AZURE_ROWS.replace(",109", ""), r"azure\.csv:3: "),
        (AZURE_ROWS.replace("ContextTokens", "Prompt"), r"azure\.csv:1: no column 'ContextTokens'"),
    ],
)
def test_a_bad_azure_row_is_named(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "azure.csv"
    path.write_text(text)
    with pytest.raises(TraceError, match=complaint):
        load_trace(f"azure:{path}")


def test_a_missing_and_a_truncated_file_are_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="nowhere"):
        load_trace("mooncake:nowhere")
    cut = tmp_path / "cut.gz"
    cut.write_bytes(gzip.compress(row(0).encode() * 100)[:40])
    with pytest.raises(TraceError, match=r"cut\.gz"):
        load_trace(f"mooncake:{cut}")


@pytest.mark.parametrize("spec", ["", "mooncake", "sharegpt:x", "synthetic:azure"])
def test_an_unknown_spec_is_refused(spec: str) -> None:
    with pytest.raises(TraceError, match="unknown"):
        load_trace(spec)


def test_a_rate_scale_of_zero_is_refused(mooncake: Callable[..., str]) -> None:
    with pytest.raises(TraceError, match="rate scale"):
        load_trace(mooncake(row(0)), rate_scale=0)


def test_the_synthetic_trace_is_as_long_as_asked() -> None:
    assert len(load_trace("synthetic:mooncake", limit=20)) == 20
    assert len(load_trace("synthetic:mooncake")) == SYNTHETIC_REQUESTS


@pytest.mark.shared_data
@pytest.mark.skipif(not MOONCAKE.exists(), reason=f"{MOONCAKE.name} is not here")
def test_the_real_mooncake_trace_loads_without_bursts() -> None:
    requests = load_trace(f"mooncake:{MOONCAKE}")
    gaps_s = [b.arrival_s - a.arrival_s for a, b in pairwise(requests)]
    mean_s = sum(gaps_s) / len(gaps_s)
    variance = sum((gap_s - mean_s) ** 2 for gap_s in gaps_s) / len(gaps_s)
    assert len(requests) == 12_031
    assert requests[-1].arrival_s / len(requests) == pytest.approx(1 / 3.40, rel=0.01)
    assert variance**0.5 / mean_s == pytest.approx(1.0, abs=0.1)  # as Poisson arrivals, which 3 s ticks are not


@pytest.mark.shared_data
@pytest.mark.skipif(not AZURE.exists(), reason=f"{AZURE.name} is not here")
def test_the_real_azure_trace_loads_wholly() -> None:
    requests = load_trace(f"azure:{AZURE}")
    assert len(requests) == 19_366
    assert requests[-1].arrival_s == pytest.approx(3_502, abs=1)
