"""Figures and tables of reports as Markdown.

The rule of this module: an interval stands in brackets behind its value; what is not known is a dash.
"""

from collections.abc import Iterable, Sequence

from loadtest.compare.bootstrap import SHARES, Interval
from loadtest.report.tables import DASH

NO_CLAIM = "This run is no claim: it has too little traffic, or too few seeds or cells."
HEADINGS = {
    "attained_ratio": "SLO met",
    "ttft_p50_s": "TTFT P50, s",
    "ttft_p90_s": "TTFT P90, s",
    "tpot_p50_s": "TPOT P50, ms",
    "tpot_p90_s": "TPOT P90, ms",
    "local_ratio": "local",
}
UNITS = {"ttft_p50_s": (1.0, 2), "ttft_p90_s": (1.0, 2), "tpot_p50_s": (1e3, 1), "tpot_p90_s": (1e3, 1)}
"""Factor and digits of latencies."""


def figure(metric: str, found: Interval) -> str:
    """A metric in its report's unit."""
    if metric in SHARES:
        return f"{found.value:.1%} [{found.low:.1%}, {found.high:.1%}]"
    factor, digits = UNITS[metric]
    own = found.shifted(factor)
    return f"{own.value:.{digits}f} [{own.low:.{digits}f}, {own.high:.{digits}f}]"


def plain(metric: str, value: float) -> str:
    """A metric without an interval, in its report's unit."""
    if metric in SHARES:
        return share(value)
    factor, digits = UNITS[metric]
    return f"{factor * value:.{digits}f}"


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
