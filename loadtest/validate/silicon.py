"""Compares the engine model with public end-to-end benchmarks: `python -m loadtest.validate.silicon --data DIR`.

Each row's closed loop runs against the engine with prices fitted for its system, model, split and precision, from
kernel measurements only: no number is fitted to a row. Two settings that the sources leave open were read with the rows
at hand (see `silicon_protocols`), and `--alternatives` shows what the other readings give. The mean TTFT and the mean
TPOT are compared, for both sources report means. Over each bounded model's rows the median absolute error must be at
most 25 % of TTFT and 15 % of TPOT.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from gateway.core.step_cost import CostTable
from loadtest.engine.engine import Engine
from loadtest.engine.fit_costs import fit
from loadtest.engine.fitting.overhead import fit_step_overhead
from loadtest.engine.fitting.shapes import Deployment, Model
from loadtest.validate.silicon_loop import run_closed_loop
from loadtest.validate.silicon_protocols import ALTERNATIVES, PROTOCOLS, SOURCES, Protocol
from loadtest.validate.silicon_rows import Benchmark, SiliconRow, read_benchmarks
from loadtest.validate.silicon_summary import GroupErrors, summarise
from loadtest.validate.silicon_tables import alternatives_table, groups_table, protocol_text, rows_table
from policy_store.costs.file import to_table


class Prices:
    """Cost tables by what they price; each is fitted once."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self._step_overhead_s = fit_step_overhead(data)
        self._tables: dict[Deployment, CostTable] = {}

    def of(self, deployment: Deployment) -> CostTable:
        """The prices of one deployment; `LookupError` where its kernels were not measured."""
        if deployment not in self._tables:
            self._tables[deployment] = to_table(fit(deployment, self._data, self._step_overhead_s))
        return self._tables[deployment]


def run(data: Path) -> tuple[SiliconRow, ...]:
    """Predict every row; `data` is the directory with the rows and the kernel measurements."""
    return _predict(Prices(data), read_benchmarks(data), PROTOCOLS)


def run_alternatives(data: Path) -> dict[str, tuple[GroupErrors, ...]]:
    """The errors of a model's rows under other readings of its source, by what they change."""
    prices, rows = Prices(data), list(read_benchmarks(data))
    errors = {}
    for model, protocols in ALTERNATIVES.items():
        own = [row for row in rows if row.model is model]
        for label, protocol in protocols.items():
            errors[label] = summarise(_predict(prices, own, {model: protocol})).models
    return errors


def _predict(prices: Prices, rows: Iterable[Benchmark], protocols: Mapping[Model, Protocol]) -> tuple[SiliconRow, ...]:
    return tuple(_predict_row(prices, row, protocols[row.model]) for row in rows)


def _predict_row(prices: Prices, row: Benchmark, protocol: Protocol) -> SiliconRow:
    costs = prices.of(protocol.deployment(row))
    engine = Engine(protocol.engine_spec(row), costs, tells_every_token=False)
    result = run_closed_loop(
        engine, protocol.lengths(row), row.concurrency, front_end_is_serial=protocol.front_end_is_serial
    )
    return SiliconRow(measured=row, ttft_s=result.ttft_s, tpot_s=result.tpot_s)


def main(
    *,
    data: Annotated[Path, typer.Option(help="Directory with the benchmark rows and the kernel measurements.")],
    every_row: Annotated[bool, typer.Option(help="Print all rows, not the worst alone.")] = False,
    alternatives: Annotated[bool, typer.Option(help="Predict also under other readings of the sources.")] = False,
) -> None:
    """Compare the engine model with public end-to-end benchmarks; fails where a bound is missed."""
    rows = run(data)
    summary = summarise(rows)
    console = Console()
    console.print(protocol_text(SOURCES), highlight=False)
    console.print(groups_table(summary))
    console.print(rows_table(rows, "All rows") if every_row else rows_table(summary.worst, "Furthest off"))
    if alternatives:
        console.print(alternatives_table(run_alternatives(data)))
    if not summary.holds:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
