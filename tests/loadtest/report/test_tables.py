import pytest
from rich.console import Console, RenderableType

from gateway.core.types import SloTarget
from loadtest.client.reconcile import ReconcileRow
from loadtest.client.records import Record
from loadtest.report.conversations import ConversationSummary, tail
from loadtest.report.summary import Summary, summarise
from loadtest.report.tables import (
    comparison_table,
    conversation_table,
    duration,
    headlines,
    latency_table,
    path_table,
    reconcile_table,
)

SLO = SloTarget(name="run", ttft_s=2.0, tpot_s=0.04)


def request(path: str | None, ttft_s: float) -> Record:
    return Record(
        request_id="r", index=0, scheduled_s=0.0, sent_s=0.0, lag_s=0.0004, status=200, ok=True, input_tokens=1000,
        output_tokens=10, cached_tokens=250, ttft_s=ttft_s, tpot_s=0.0321, itl_p99_s=0.05, e2e_s=10.0, path=path,
    )  # fmt: skip


RUN = (*[request("local", 0.5)] * 3, request("remote", 2.5))


def shown(table: RenderableType) -> list[list[str]]:
    """The printed cells, row by row, the header first."""
    console = Console(width=160, color_system=None)
    with console.capture() as text:
        console.print(table)
    rows = [line for line in text.get().splitlines() if any(cell.isalnum() for cell in line)]
    return [[cell.strip() for cell in line.replace("┃", "│")[1:-1].split("│")] for line in rows]


@pytest.fixture
def summary() -> Summary:
    return summarise(RUN, SLO)


def test_latencies_are_shown_in_the_unit_that_suits_them(summary: Summary) -> None:
    rows = {row[0]: row[1:] for row in shown(latency_table(summary))}
    assert rows["latency"] == ["P50", "P90", "P99", "mean"]
    assert rows["TTFT"] == ["500.0 ms", "1.90 s", "2.44 s", "1.00 s"]
    assert rows["TPOT"] == ["32.1 ms"] * 4
    assert rows["E2E"] == ["10.00 s"] * 4
    assert rows["send lag"][0] == "0.40 ms"


def test_what_is_not_known_is_a_dash() -> None:
    rows = shown(latency_table(summarise([], SLO)))
    assert rows[1] == ["TTFT", "-", "-", "-", "-"]
    assert duration(None) == "-"


def test_paths_are_shown_with_their_share(summary: Summary) -> None:
    _, local, remote = shown(path_table(summary))
    assert local == ["local", "3", "75.0%", "100.0%", "500.0 ms", "32.1 ms"]
    assert remote == ["remote", "1", "25.0%", "0.0%", "2.50 s", "32.1 ms"]


def test_runs_are_compared_row_by_row_within_80_columns(summary: Summary) -> None:
    elsewhere = summarise([request(None, 1.0)], SLO, asked=2)
    console = Console(width=80, color_system=None)
    with console.capture() as text:
        console.print(comparison_table({"tidegate": summary, "other": elsewhere}))
    lines = [line.split() for line in text.get().splitlines() if any(cell.isalnum() for cell in line)]
    titles = ["run", "SLO", "met", "TTFT", "P50/P90,", "s", "TPOT", "P50/P90,", "ms", "cached", "remote"]
    assert lines == [
        titles,
        ["tidegate", "75.0%", "0.50", "/", "1.90", "32.1", "/", "32.1", "25.0%", "25.0%"],
        ["other", "(1/2)", "100.0%", "1.00", "/", "1.00", "32.1", "/", "32.1", "25.0%", "-"],
    ]


def test_a_figure_that_differs_stands_out() -> None:
    rows = [
        ReconcileRow(name="decisions", client=600, gateway=600, equal=True),
        ReconcileRow(name="output tokens", client=12_345, gateway=12_346, equal=False),
        ReconcileRow(name="TTFT sum", client=1.25, gateway=1.125, equal=None, note="+2 ms"),
    ]
    assert shown(reconcile_table(rows))[1:] == [
        ["decisions", "600", "600", "yes", ""],
        ["output tokens", "12,345", "12,346", "NO", ""],
        ["TTFT sum", "1.250", "1.125", "-", "+2 ms"],
    ]


def test_headlines_say_done_of_asked_and_name_failures(summary: Summary) -> None:
    assert headlines(summary, SLO)[0] == "[bold]4/4 requests completed[/] in 10.0 s"
    assert not any("failures" in line for line in headlines(summary, SLO))
    lost = Record(request_id="r", index=0, scheduled_s=0.0, error="timeout", e2e_s=1.0)
    assert headlines(summarise([*RUN, lost], SLO), SLO)[-1] == "[red]failures: timeout 1[/]"


def test_conversations_with_what_is_not_known_as_a_dash() -> None:
    found = ConversationSummary(
        asked=3,
        finished=2,
        finished_ratio=2 / 3,
        ttfet_s=tail([0.5, 0.5]),
        ttfet_work_s=None,
        e2e_s=tail([60.0]),
        last_tpot_s=None,
        transfers_mean=1.5,
        transfers={1: 1, 2: 1},
        moves_mean=0.0,
    )
    rows = shown(conversation_table(found))
    assert rows[1] == ["time to first visible token", *[duration(0.5)] * 4]
    assert rows[2] == ["without pauses", "-", "-", "-", "-"]
    assert rows[5] == ["transfers", "-", "-", "-", "1.50"]
    assert rows[6][0] == "2 of 3 finished"
