"""A run's figures as tables for a terminal.

The rule of this module: layout only; every figure comes from a `Summary` or a `ReconcileRow`. A dash stands for
what is not known.
"""

from collections.abc import Iterable, Mapping

from rich.box import SIMPLE_HEAD
from rich.table import Column, Table

from gateway.core.types import Path, SloTarget
from loadtest.client.reconcile import ReconcileRow
from loadtest.report.conversations import ConversationSummary
from loadtest.report.slo import slo_words
from loadtest.report.summary import NO_PATH, PathSummary, Percentiles, Summary

DASH = "-"


def headlines(summary: Summary, slo: SloTarget) -> list[str]:
    """The run in a few lines, with rich's markup."""
    met = f"[bold]{ratio(summary.attained_ratio)}[/]"
    errors = ", ".join(f"{kind} {count}" for kind, count in summary.errors.items())
    lines = [
        f"[bold]{summary.completed}/{summary.asked} requests completed[/] in {summary.duration_s:.1f} s",
        f"SLO met ({slo_words(slo)}): {met}, goodput {summary.goodput_per_s:.2f} requests/s",
        f"input tokens {summary.input_tokens:,}, cached {ratio(summary.cached_ratio)}",
        f"output tokens {summary.output_tokens:,}, {summary.output_tokens_per_s:,.0f}/s",
    ]
    return [*lines, f"[red]failures: {errors}[/]"] if errors else lines


def latency_table(summary: Summary) -> Table:
    """P50, P90, P99 and mean of each latency."""
    table = Table("latency", *_right("P50", "P90", "P99", "mean"))
    for name, values in (
        ("TTFT", summary.ttft_s),
        ("TPOT", summary.tpot_s),
        ("ITL, each request's P99", summary.itl_p99_s),
        ("E2E", summary.e2e_s),
        ("send lag", summary.lag_s),
    ):
        table.add_row(name, *_percentile_cells(values))
    return table


def path_table(summary: Summary) -> Table:
    """Share, attainment and latencies of each path."""
    table = Table("path", *_right("requests", "share", "SLO met", "TTFT P90", "TPOT P90"))
    total = sum(path.requests for path in summary.paths.values())
    for name, path in summary.paths.items():
        table.add_row(name, str(path.requests), ratio(path.requests / total), *_path_cells(path))
    return table


def conversation_table(found: ConversationSummary) -> Table:
    """How long users of conversations waited, and how often KV moved for one."""
    table = Table("conversations", *_right("P50", "P95", "P99", "mean"))
    for name, values in (
        ("time to first visible token", found.ttfet_s),
        ("without pauses", found.ttfet_work_s),
        ("whole conversation", found.e2e_s),
        ("TPOT of the last turn", found.last_tpot_s),
    ):
        cells = [DASH] * 4 if values is None else [values.p50, values.p95, values.p99, values.mean]
        table.add_row(name, *(cell if isinstance(cell, str) else duration(cell) for cell in cells))
    if found.transfers_mean is not None:
        table.add_row("transfers", *[DASH] * 3, f"{found.transfers_mean:.2f}")
    table.add_row(f"{found.finished} of {found.asked} finished", *[""] * 4)
    return table


def comparison_table(summaries: Mapping[str, Summary]) -> Table:
    """Several runs of the same work, one row each; narrow enough for 80 columns."""
    names = _right("SLO met", "TTFT P50/P90, s", "TPOT P50/P90, ms", "cached", "remote")
    table = Table("run", *names, box=SIMPLE_HEAD)
    for name, summary in summaries.items():
        unfinished = "" if summary.completed == summary.asked else f" ({summary.completed}/{summary.asked})"
        table.add_row(
            name + unfinished,
            ratio(summary.attained_ratio),
            _pair(summary.ttft_s, scale=1.0, digits=2),
            _pair(summary.tpot_s, scale=1e3, digits=1),
            ratio(summary.cached_ratio),
            _remote_share(summary),
        )
    return table


def _pair(values: Percentiles | None, *, scale: float, digits: int) -> str:
    if values is None:
        return DASH
    return f"{values.p50 * scale:.{digits}f} / {values.p90 * scale:.{digits}f}"


def reconcile_table(rows: Iterable[ReconcileRow]) -> Table:
    """The client's figures beside the gateway's."""
    table = Table("figure", *_right("client", "gateway"), "equal", "note")
    marks = {True: "[green]yes[/]", False: "[bold red]NO[/]", None: DASH}
    for row in rows:
        table.add_row(row.name, _number(row.client), _number(row.gateway), marks[row.equal], row.note)
    return table


def duration(value_s: float | None) -> str:
    """Seconds in the unit that suits them: `2.07 s`, `41.3 ms`, `0.64 ms`."""
    if value_s is None:
        return DASH
    if abs(value_s) >= 1.0:
        return f"{value_s:.2f} s"
    return f"{value_s * 1000:.1f} ms" if abs(value_s) >= 0.01 else f"{value_s * 1000:.2f} ms"


def ratio(value: float | None) -> str:
    """A share as a percentage."""
    return DASH if value is None else f"{value:.1%}"


def _right(*names: str) -> list[Column]:
    return [Column(name, justify="right") for name in names]


def _percentile_cells(values: Percentiles | None) -> list[str]:
    return _cells(values, "p50", "p90", "p99", "mean")


def _path_cells(path: PathSummary) -> list[str]:
    return [ratio(path.attained_ratio), *_cells(path.ttft_s, "p90"), *_cells(path.tpot_s, "p90")]


def _cells(values: Percentiles | None, *names: str) -> list[str]:
    return [duration(None if values is None else getattr(values, name)) for name in names]


def _remote_share(summary: Summary) -> str:
    requests = {name: path.requests for name, path in summary.paths.items() if name != NO_PATH}
    return ratio(requests.get(Path.REMOTE, 0) / sum(requests.values())) if requests else DASH


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:,.3f}"
