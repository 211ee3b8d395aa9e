"""The comparison with public benchmarks as tables for people."""

from collections.abc import Iterable, Mapping, Sequence

from rich.table import Column, Table

from loadtest.validate.silicon_protocols import Protocol
from loadtest.validate.silicon_rows import SiliconRow
from loadtest.validate.silicon_summary import TPOT_BOUND, TTFT_BOUND, GroupErrors, Summary

ERROR_COLUMNS = ("rows", "TTFT |error|", "bias", "TPOT |error|", "bias")


def protocol_text(protocols: Iterable[Protocol]) -> str:
    """What is known of each source's runs."""
    return "\n".join("\n  - ".join((protocol.source, *protocol.evidence)) for protocol in protocols)


def groups_table(summary: Summary) -> Table:
    """Median errors of every model, with its bounds, then of its systems and splits."""
    title = f"Medians over rows; bounds: TTFT {TTFT_BOUND:.0%}, TPOT {TPOT_BOUND:.0%} of each model"
    table = Table("group", *_right(*ERROR_COLUMNS), "bounds", title=title)
    for groups in (summary.models, summary.systems, summary.splits):
        for group in groups:
            table.add_row(" ".join(group.group), *_numbers(group), _verdict(group))
        table.add_section()
    return table


def alternatives_table(alternatives: Mapping[str, Sequence[GroupErrors]]) -> Table:
    """Median errors of a model's rows under other readings of its source."""
    table = Table("other reading", *_right(*ERROR_COLUMNS), title="What other settings would give")
    for label, groups in alternatives.items():
        for group in groups:
            table.add_row(f"{' '.join(group.group)}: {label}", *_numbers(group))
    return table


def rows_table(rows: Iterable[SiliconRow], title: str) -> Table:
    """Every row with measurement, prediction and error."""
    numbers = _right("clients", "TTFT, ms", "predicted", "error", "TPOT, ms", "predicted", "error")
    table = Table("engine", "prompt x output", *numbers, title=title)
    for row in rows:
        table.add_row(*_cells(row))
    return table


def _cells(row: SiliconRow) -> tuple[str, ...]:
    point = row.measured
    return (
        f"{point.system.name} {point.model.name} tp{point.gpus} {point.precision}",
        f"{point.isl_tokens} x {point.osl_tokens}",
        f"{point.concurrency}",
        f"{point.ttft_s * 1e3:.0f}",
        f"{row.ttft_s * 1e3:.0f}",
        f"{row.ttft_error:+.0%}",
        f"{point.tpot_s * 1e3:.2f}",
        f"{row.tpot_s * 1e3:.2f}",
        f"{row.tpot_error:+.0%}",
    )


def _numbers(group: GroupErrors) -> tuple[str, ...]:
    return (
        f"{group.rows}",
        f"{group.ttft_median:.1%}",
        f"{group.ttft_bias:+.1%}",
        f"{group.tpot_median:.1%}",
        f"{group.tpot_bias:+.1%}",
    )


def _verdict(group: GroupErrors) -> str:
    if not group.is_bounded:
        return ""
    verdicts = {"TTFT": group.ttft_holds, "TPOT": group.tpot_holds}
    return ", ".join(f"{name} {'[green]holds[/]' if holds else '[red]missed[/]'}" for name, holds in verdicts.items())


def _right(*names: str) -> list[Column]:
    return [Column(name, justify="right") for name in names]
