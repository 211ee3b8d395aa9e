"""What a dashboard is made of.

The rule of this module: data only. A dashboard is rows of panels, a row's panels share its height and fill the 24
columns, so no two can overlap. How it looks as Grafana's JSON is `encode`'s business.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

COLUMNS = 24
"""Width of Grafana's grid."""


class Kind(StrEnum):
    """A panel type, by Grafana's name."""

    TIME_SERIES = "timeseries"
    STAT = "stat"
    BAR_GAUGE = "bargauge"
    STATE_TIMELINE = "state-timeline"
    TABLE = "table"


class Unit(StrEnum):
    """A unit, by Grafana's id."""

    SECONDS = "s"
    RATIO = "percentunit"
    COUNT = "short"
    TIMES = "suffix: x"
    REQUESTS_PER_S = "reqps"
    EVENTS_PER_S = "ops"
    TOKENS_PER_S = "si:tok/s"
    WATTS = "watt"


class Colour(StrEnum):
    """Colours with a meaning, by Grafana's name."""

    GOOD = "green"
    WARNING = "orange"
    BAD = "red"
    NEUTRAL = "blue"
    UNKNOWN = "text"


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """One PromQL expression and how its series are called."""

    expr: str
    legend: str = ""
    """Grafana's legend template, such as `{{worker}}`."""
    is_limit: bool = False
    """Drawn as a dashed red line: a bound, not a measurement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold:
    """A colour from a value on."""

    value: float
    colour: Colour


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """Colours by value: `base` below the first step."""

    base: Colour = Colour.NEUTRAL
    steps: tuple[Threshold, ...] = ()
    show_lines: bool = False
    """Draw them into a time series as dashed lines."""

    def colour(self, value: float) -> Colour:
        """The colour of a value."""
        reached = [step.colour for step in self.steps if value >= step.value]
        return reached[-1] if reached else self.base


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """A number that stands for a word."""

    value: int
    text: str
    colour: Colour


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A value column of a table; rows are joined on the labels that the queries share."""

    title: str
    expr: str
    unit: Unit = Unit.COUNT
    states: tuple[State, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One panel: a table has columns, every other kind has queries."""

    kind: Kind
    title: str
    description: str
    unit: Unit
    width: int
    queries: tuple[Query, ...] = ()
    columns: tuple[Column, ...] = ()
    label_titles: Mapping[str, str] = field(default_factory=dict)
    """Label columns of a table, in order, and their headings."""
    thresholds: Thresholds = Thresholds()
    states: tuple[State, ...] = ()
    is_stacked: bool = False
    minimum: float | None = 0.0
    maximum: float | None = None
    decimals: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Panels side by side.

    Raises:
        ValueError: they do not fill the grid's width.
    """

    height: int
    panels: tuple[Panel, ...]

    def __post_init__(self) -> None:
        if sum(panel.width for panel in self.panels) != COLUMNS:
            raise ValueError(f"panels {[panel.title for panel in self.panels]} do not fill {COLUMNS} columns")


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelVariable:
    """A choice of one label's values, read from a metric; all of them by default."""

    name: str
    title: str
    metric: str
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A panel's place in the grid."""

    x: int
    y: int
    width: int
    height: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Dashboard:
    """One dashboard."""

    uid: str
    title: str
    description: str
    variables: tuple[LabelVariable, ...]
    rows: tuple[Row, ...]

    def placed(self) -> Iterator[tuple[Panel, Place]]:
        """Every panel and its place, row by row."""
        y = 0
        for row in self.rows:
            x = 0
            for panel in row.panels:
                yield panel, Place(x=x, y=y, width=panel.width, height=row.height)
                x += panel.width
            y += row.height
