import pytest

from loadtest.client.reconcile import ReconcileRow, reconcile
from loadtest.client.records import Record

ZERO = """# TYPE tidegate_requests_total counter
tidegate_requests_total{model="m",served_model="m",path="local",outcome="ok"} 5
tidegate_requests_total{model="m",served_model="m",path="remote",outcome="ok"} 0
tidegate_retries_total{cause="connect"} 1
tidegate_path_total{path="local",reason="cluster"} 6
tidegate_tokens_total{model="m",type="input"} 500
tidegate_ttft_seconds_count{model="m",path="local"} 5
tidegate_ttft_seconds_sum{model="m",path="local"} 1.5
"""

AFTER = """# TYPE tidegate_requests counter
tidegate_requests_total{model="m",served_model="m",path="local",outcome="ok"} 7
tidegate_requests_total{model="m",served_model="m",path="remote",outcome="ok"} 1
tidegate_requests_total{model="m",served_model="m",path="local",outcome="upstream_error"} 1
tidegate_requests_total{model="m",served_model="none",path="none",outcome="refused"} 1
tidegate_retries_total{cause="connect"} 2
tidegate_path_total{path="local",reason="cluster"} 9
tidegate_path_total{path="local",reason="guard_decode_kv"} 1
tidegate_path_total{path="remote",reason="cluster"} 1
tidegate_tokens_total{model="m",type="input"} 800
tidegate_tokens_total{model="m",type="cached"} 64
tidegate_tokens_total{model="m",type="output"} 30
tidegate_ttft_seconds_count{model="m",path="local"} 7
tidegate_ttft_seconds_count{model="m",path="remote"} 1
tidegate_ttft_seconds_sum{model="m",path="local"} 2.1
tidegate_ttft_seconds_sum{model="m",path="remote"} 0.3
tidegate_tpot_seconds_count{model="m",path="local"} 2
tidegate_tpot_seconds_count{model="m",path="remote"} 1
vllm:num_requests_running 3
"""


def served(path: str) -> Record:
    return Record(
        request_id="r", index=0, scheduled_s=1.0, sent_s=1.1, lag_s=0.1, status=200, ok=True, input_tokens=100,
        output_tokens=10, cached_tokens=32 if path == "local" else 0, ttft_s=0.402, tpot_s=0.03, path=path,
    )  # fmt: skip


def failed(status: int, path: str | None) -> Record:
    return Record(
        request_id="r",
        index=0,
        scheduled_s=1.0,
        sent_s=1.0,
        lag_s=0.0,
        status=status,
        error=f"http_{status}",
        path=path,
    )


RECORDS = (served("local"), served("local"), served("remote"), failed(502, "local"), failed(503, None))


def by_name(rows: list[ReconcileRow]) -> dict[str, ReconcileRow]:
    return {row.name: row for row in rows}


def test_a_run_that_agrees_is_equal_in_every_count() -> None:
    rows = by_name(reconcile(RECORDS, ZERO, AFTER))
    assert {name: (row.client, row.gateway) for name, row in rows.items() if row.equal} == {
        "requests ok, local": (2, 2),
        "requests ok, remote": (1, 1),
        "requests not ok": (2, 2),
        "decisions": (4, 4),
        "input tokens": (300, 300),
        "cached tokens": (64, 64),
        "output tokens": (30, 30),
        "TTFT observations": (3, 3),
        "TPOT observations": (3, 3),
    }
    assert all(row.equal is not False for row in rows.values())


def test_times_are_shown_from_sending_with_the_difference_per_request() -> None:
    row = by_name(reconcile(RECORDS, ZERO, AFTER))["TTFT sum, real s"]
    assert (row.client, row.gateway) == pytest.approx((0.906, 0.9))
    assert row.equal is None
    assert row.note == "client +2.00 ms each"


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("requests ok, local", 'tidegate_requests_total{path="local",outcome="ok"} 1'),
        ("requests not ok", 'tidegate_requests_total{path="local",outcome="cancelled"} 1'),
        ("decisions", 'tidegate_path_total{path="remote",reason="priced"} 1'),
        ("output tokens", 'tidegate_tokens_total{type="output"} 1'),
        ("TTFT observations", 'tidegate_ttft_seconds_count{model="other"} 1'),
        ("TPOT observations", 'tidegate_tpot_seconds_count{model="other"} 1'),
    ],
)
def test_one_thing_more_at_the_gateway_is_found(name: str, line: str) -> None:
    rows = by_name(reconcile(RECORDS, ZERO, f"{AFTER}{line}\n"))
    assert [row.name for row in rows.values() if row.equal is False] == [name]
    assert rows[name].gateway == rows[name].client + 1


def test_a_request_that_was_never_sent_counts_on_neither_side() -> None:
    unsent = Record(request_id="r", index=0, scheduled_s=1.0, error="connect: refused")
    assert reconcile([*RECORDS, unsent], ZERO, AFTER) == reconcile(RECORDS, ZERO, AFTER)


def test_decisions_cannot_be_compared_when_a_request_got_no_answer() -> None:
    unanswered = Record(request_id="r", index=0, scheduled_s=1.0, sent_s=1.0, lag_s=0.0, error="timeout")
    assert by_name(reconcile([*RECORDS, unanswered], ZERO, AFTER))["decisions"].equal is None


@pytest.mark.parametrize("page", ["", "vllm:num_requests_running 3\n"])
def test_other_servers_are_not_reconciled(page: str) -> None:
    assert reconcile(RECORDS, page, page) == []


def test_a_gateway_that_began_without_series_is_counted_from_zero() -> None:
    rows = by_name(reconcile(RECORDS[:3], "", AFTER))
    assert rows["requests ok, local"].gateway == 7
