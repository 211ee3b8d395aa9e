"""What came of learning paths, as a table.

The rule of this module: figures are means over seeds, differences have their interval.
"""

from rich.table import Column, Table

from loadtest.experiment.compare import Estimate
from loadtest.learning.paths import PathResult

METRICS = (("attained_ratio", "attained"), ("ttft_p90_s", "P90 TTFT"), ("tpot_p90_s", "P90 TPOT"))


def verdict_table(result: PathResult) -> Table:
    """Every policy with its figures, and the learned one's distance from the rules."""
    learned, *others = result.judged
    columns = [Column(name, justify="right") for _, name in METRICS]
    table = Table("policy", *columns, title="On requests that nobody learned from")
    for each in result.judged:
        table.add_row(each.name, *(_figure(each.over_seeds(metric), metric) for metric, _ in METRICS))
    table.add_section()
    for other in others:
        cells = (_difference(learned.beside(other, metric), metric) for metric, _ in METRICS)
        table.add_row(f"{learned.name} against {other.name}", *cells)
    return table


def _figure(value: Estimate | None, metric: str) -> str:
    if value is None:
        return "-"
    match metric:
        case "attained_ratio":
            return f"{value.mean:.1%}"
        case "ttft_p90_s":
            return f"{value.mean:.2f} s"
        case _:
            return f"{1e3 * value.mean:.1f} ms"


def _difference(value: Estimate | None, metric: str) -> str:
    if value is None:
        return "-"
    unit = " points" if metric == "attained_ratio" else " %"
    words = f"{100 * value.mean:+.1f}{unit}"
    if value.low is None or value.high is None:
        return words
    return f"{words} [{100 * value.low:+.1f}, {100 * value.high:+.1f}]"
