"""What came of learning paths, as a table.

The rule of this module: figures are means over seeds, differences have their interval.
"""

from rich.table import Column, Table

from loadtest.experiment.compare import CONFIDENCE, Estimate
from loadtest.learning.paths import PathResult
from policy_store.path_models import PathModel, RegimeModel, TableModel

METRICS = (("attained_ratio", "attained"), ("ttft_p90_s", "P90 TTFT"), ("tpot_p90_s", "P90 TPOT"))


def verdict_table(result: PathResult) -> Table:
    """Every policy with its figures, and the learned one's distance from the rules."""
    learned, *others = result.judged
    columns = [Column(name, justify="right") for _, name in METRICS]
    caption = f"Means over seeds; in brackets the interval at {CONFIDENCE:.0%}."
    table = Table("policy", *columns, title="On requests that nobody learned from", caption=caption)
    for each in result.judged:
        table.add_row(each.name, *(_figure(each.over_seeds(metric), metric) for metric, _ in METRICS))
    table.add_section()
    for other in others:
        cells = (_difference(learned.beside(other, metric), metric) for metric, _ in METRICS)
        table.add_row(f"{learned.name} against {other.name}", *cells)
    return table


def table_words(model: PathModel) -> str | None:
    """How many cells of a table go which way; None where the model is no table."""
    match model:
        case TableModel(actions=actions):
            cells, shape = list(actions), f"{len(actions)} clusters"
        case RegimeModel(actions=by_cluster):
            cells = [action for actions in by_cluster for action in actions]
            shape = f"{len(by_cluster)} clusters in {len(by_cluster[0])} load regimes"
        case _:
            return None
    local = cells.count("local")
    return f"{shape}: {local} local (prompts of up to {model.max_local_tokens:,} tokens), {len(cells) - local} remote"


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
    # A line of its own: beside the figure it would be broken within the brackets, on a screen of 80 columns.
    return f"{words}\n[{100 * value.low:+.1f}, {100 * value.high:+.1f}]"
