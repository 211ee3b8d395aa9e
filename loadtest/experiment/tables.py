"""Comparisons as tables for a terminal.

The rule of this module: layout only. `0.62 ±0.05` is a mean over seeds and half its interval; a difference whose
interval does not hold 0 is bold.
"""

from collections.abc import Iterable, Iterator

from rich.box import SIMPLE_HEAD
from rich.table import Column, Table

from loadtest.experiment.compare import CONFIDENCE, Comparison, Estimate
from loadtest.report.tables import DASH

COLUMNS = {
    "attained_ratio": ("SLO met\n%", 100.0, 1),
    "goodput_per_s": ("goodput\n/s", 1.0, 2),
    "ttft_p90_s": ("TTFT P90\ns", 1.0, 2),
    "tpot_p90_s": ("TPOT P90\nms", 1e3, 1),
}
"""Heading, factor and digits of what is shown, by metric."""
WITHOUT_INTERVAL = ("ttft_p90_s", "tpot_p90_s")
"""So that a row fits into 80 columns; their intervals are in the file."""

CAPTION = f"Means over seeds, ± half a {CONFIDENCE:.0%} t interval; differences are paired by seed."

Place = tuple[str, str, str]


def comparison_tables(comparisons: Iterable[Comparison]) -> Iterator[Table]:
    """One table per workload, fleet and SLO: a row for each load and policy."""
    places: dict[Place, list[Comparison]] = {}
    for one in comparisons:
        places.setdefault((one.workload, one.fleet, one.slo), []).append(one)
    for (workload, fleet, slo), here in places.items():
        yield _table(f"{workload} on {fleet}, SLO {slo}", here)


def _table(title: str, comparisons: Iterable[Comparison]) -> Table:
    headings = [heading for heading, _, _ in COLUMNS.values()]
    headings.insert(1, "less\nbaseline")
    table = Table(
        Column("load", justify="right"),
        Column("policy", overflow="fold"),
        *(Column(heading, justify="right", no_wrap=True) for heading in headings),
        title=title,
        title_justify="left",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    rows: dict[float, dict[str, dict[str, Comparison]]] = {}
    for one in comparisons:
        rows.setdefault(one.load, {}).setdefault(one.policy, {})[one.metric] = one
    for load, policies in rows.items():
        table.add_section()
        for place, (policy, by_metric) in enumerate(policies.items()):
            cells = [_cell(by_metric[metric].estimate, metric) for metric in COLUMNS]
            cells.insert(1, _difference(by_metric["attained_ratio"]))
            table.add_row("" if place else f"{load:g}", policy, *cells)
    return table


def _cell(found: Estimate | None, metric: str, *, sign: str = "") -> str:
    if found is None:
        return DASH
    _, factor, digits = COLUMNS[metric]
    mean = f"{found.mean * factor:{sign}.{digits}f}"
    return (
        mean
        if found.high is None or metric in WITHOUT_INTERVAL
        else f"{mean} ±{(found.high - found.mean) * factor:.{digits}f}"
    )


def _difference(comparison: Comparison) -> str:
    found = comparison.difference
    text = _cell(found, comparison.metric, sign="+")
    sure = found is not None and found.low is not None and found.high is not None and not found.low <= 0 <= found.high
    return f"[bold]{text}[/]" if sure else text
