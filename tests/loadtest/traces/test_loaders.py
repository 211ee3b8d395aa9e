import gzip
import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.traces.loaders import SYNTHETIC_REQUESTS, load_trace, load_workload
from loadtest.traces.rows import MOONCAKE_TICK_S
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


def test_without_jitter_arrivals_are_the_files_in_its_order(mooncake: Callable[..., str]) -> None:
    spec = mooncake(*(row(3000 * (n // 10), input_length=100 + n) for n in range(40)))
    requests = load_trace(f"{spec}?jitter=0")
    assert [request.arrival_s for request in requests] == [3.0 * (n // 10) for n in range(40)]
    assert [request.input_tokens for request in requests] == [100 + n for n in range(40)]


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


@pytest.mark.parametrize("spec", ["", "mooncake", ":x", "sharegpt:x", "synthetic:azure"])
def test_an_unknown_spec_is_refused(spec: str) -> None:
    with pytest.raises(TraceError, match="unknown"):
        load_trace(spec)


def test_a_rate_scale_of_zero_is_refused(mooncake: Callable[..., str]) -> None:
    with pytest.raises(TraceError, match="rate scale"):
        load_trace(mooncake(row(0)), rate_scale=0)


def test_the_synthetic_trace_is_as_long_as_asked() -> None:
    assert len(load_trace("synthetic:mooncake", limit=20)) == 20
    assert len(load_trace("synthetic:mooncake")) == SYNTHETIC_REQUESTS


SPECS = ["mooncake", "azure-conv", "azure-code", "tool-agent", "claude-code", "miniswe"]


@pytest.mark.parametrize("name", SPECS)
def test_every_synthetic_trace_yields_what_the_limit_asks_for(name: str) -> None:
    requests = load_trace(f"synthetic:{name}", limit=40, seed=2)
    arrivals_s = [request.arrival_s for request in requests]
    assert arrivals_s == sorted(arrivals_s)
    assert [request.index for request in requests] == list(range(40))


@pytest.mark.parametrize("name", ["claude-code", "miniswe"])
def test_a_limit_takes_the_first_nominal_arrivals_of_all_sessions(name: str) -> None:
    few, many = (load_trace(f"synthetic:{name}", limit=limit, seed=2) for limit in (60, 100))
    assert [(one.session, one.arrival_s, one.input_tokens) for one in few] == [
        (one.session, one.arrival_s, one.input_tokens) for one in many[:60]
    ]


def test_a_workload_keeps_its_sessions_closed() -> None:
    workload = load_workload("synthetic:miniswe", limit=50, seed=1)
    assert workload.requests == ()
    assert sum(len(session.turns) for session in workload.sessions) == 50
    assert len(list(workload.driver().first_arrivals())) == len(workload.sessions)


def test_a_rate_is_met_exactly_and_moves_no_later_turn() -> None:
    usual, quick = (load_workload(f"synthetic:miniswe{rate}", limit=200) for rate in ("", "?rate=5"))
    assert len(quick.sessions) / quick.sessions[-1].start_s == pytest.approx(5.0)
    assert [session.turns for session in quick.sessions] == [session.turns for session in usual.sessions]


def test_traces_are_mixed_each_at_its_rate() -> None:
    workload = load_workload("synthetic:miniswe?rate=0.5 + synthetic:azure-conv?rate=4", limit=300)
    assert workload.sessions[0].id.startswith("0/")
    assert len(workload.requests) / workload.requests[-1].arrival_s == pytest.approx(4.0)
    assert len(load_trace("synthetic:miniswe + synthetic:miniswe", limit=100)) == 100


def test_the_same_trace_twice_is_drawn_twice() -> None:
    one, other = load_workload("synthetic:azure-conv + synthetic:azure-conv", limit=10).requests[:2]
    assert one.arrival_s != other.arrival_s


def test_phases_stretch_time() -> None:
    usual, phased = (load_trace(f"synthetic:azure-conv{more}", limit=100) for more in ("", "?phases=5:1,1:2"))
    late = [(a.arrival_s, b.arrival_s) for a, b in zip(usual, phased, strict=True) if a.arrival_s > 6]
    assert all(b == pytest.approx(5 + (a - 5) / 2) for a, b in late)


def test_contexts_shrink_in_traces_of_any_kind(tmp_path: Path) -> None:
    usual, short = (load_trace(f"synthetic:miniswe{more}", limit=50) for more in ("", "?context=0.25"))
    assert [one.input_tokens for one in short] == [max(16, -(-one.input_tokens // 4)) for one in usual]
    assert [(one.arrival_s, one.output_tokens) for one in short] == [
        (one.arrival_s, one.output_tokens) for one in usual
    ]
    sessions = tmp_path / "sessions"
    request = {"t": 0, "type": "n", "in": 1_000, "out": 3, "h": [1, 15]}
    sessions.write_text(json.dumps({"id": "s", "models": [], "block_size": 64, "requests": [request]}))
    (once,) = load_trace(f"claude:{sessions}?context=0.5")
    assert once.input_tokens == 500  # scaled while it was read, and not again
    with pytest.raises(TraceError, match="at most 1"):
        load_trace("synthetic:miniswe?context=2", limit=5)


def test_a_horizon_draws_on_beyond_the_trace(mooncake: Callable[..., str]) -> None:
    spec = mooncake(*(row(1000 * n, hash_ids=(n,)) for n in range(1, 101)))
    requests = load_trace(f"{spec}?horizon=1000")
    assert len(requests) == pytest.approx(1_000, rel=0.05)
    assert requests[-1].arrival_s == pytest.approx(1_000, rel=0.02)
    assert len(load_trace(f"{spec}?horizon=1000", limit=7)) == 7


def test_text_traces_are_read_by_kind(tmp_path: Path) -> None:
    chat, calls, sessions = tmp_path / "chat", tmp_path / "calls", tmp_path / "sessions"
    messages = [{"role": role, "content": "text " * 20} for role in ("user", "assistant", "user", "assistant")]
    chat.write_text(json.dumps({"messages": messages}))
    call = {"t": 0, "keep": 0, "add": "text", "in_tok": 40, "out_tok": 3}
    calls.write_text(json.dumps({"session": "s", "calls": [call, {**call, "t": 1, "keep": 4}]}))
    request = {"t": 0, "type": "n", "in": 140, "out": 3, "h": [1, 2]}
    sessions.write_text(json.dumps({"id": "s", "models": [], "block_size": 64, "requests": [request, request]}))
    for spec, block_tokens in (
        (f"taubench:{chat}?tool=1&user=2", 16),
        (f"swe:{chat}?tool=0&block=32", 32),
        (f"lmcache:{calls}", 16),
        (f"claude:{sessions}?shared_head=1&context=0.5&agents=0", 64),
        (f"claude:{sessions}?block=128", 128),
    ):
        first, second = load_trace(spec)
        assert (first.block_tokens, first.session) == (block_tokens, second.session)
        assert first.arrival_s > 0


def test_a_servegen_pool_is_drawn_at_a_rate_in_a_window(tmp_path: Path) -> None:
    pool = tmp_path / "pool"
    lengths = {"input_tokens": [5, 9], "output_tokens": [5, 9]}
    rows = [[at_s, 1.0, 1.0, "Gamma", 1.0, 1.0] for at_s in (0, 600)]
    pool.write_text(json.dumps({"client": 0, "trace": rows, "len": {"0": lengths}}))
    requests = load_trace(f"servegen:{pool}?from=300&to=900&rate=5")
    assert len(requests) / 600 == pytest.approx(5.0, rel=0.1)
    with pytest.raises(TraceError, match="must end after"):
        load_trace(f"servegen:{pool}?from=300&to=300")


@pytest.mark.parametrize(
    "options", ["jitter=0", "rate=0", "rate=x", "phases=1", "phases=5:0", "horizon=0", "block=16", "typo=1"]
)
def test_a_wrong_option_is_refused(options: str) -> None:
    with pytest.raises(TraceError, match="azure-conv"):
        load_trace(f"synthetic:azure-conv?{options}", limit=10)


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
