"""Figures and tables of reports as Markdown.

The rule of this module: an interval stands in brackets behind its value; what is not known is a dash.
"""

from collections.abc import Iterable, Sequence

from loadtest.compare.bootstrap import SHARES, Interval
from loadtest.report.tables import DASH

UNITS = {"ttft_p50_s": (1.0, 2), "ttft_p90_s": (1.0, 2), "tpot_p50_s": (1e3, 1), "tpot_p90_s": (1e3, 1)}
"""Factor and digits of latencies."""


def figure(metric: str, found: Interval) -> str:
    """A metric in its report's unit."""
    if metric in SHARES:
        return f"{found.value:.1%} [{found.low:.1%}, {found.high:.1%}]"
    factor, digits = UNITS[metric]
    own = found.shifted(factor)
    return f"{own.value:.{digits}f} [{own.low:.{digits}f}, {own.high:.{digits}f}]"


def points(found: Interval | None) -> str:
    """A difference."""
    return DASH if found is None else f"{found.value:+.1%} [{found.low:+.1%}, {found.high:+.1%}]"


def share(value: float | None) -> str:
    """A share without an interval."""
    return DASH if value is None else f"{value:.1%}"


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Rows under their headings."""
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
