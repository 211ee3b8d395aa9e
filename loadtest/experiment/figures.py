"""The pictures of an experiment, from its table and its records.

The rule of this module: it chooses what is drawn where; figures come from rows and records, drawing is
`loadtest.report`'s.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from gateway.core.types import SloTarget
from loadtest.client.records import Record
from loadtest.experiment.chrome import write_trace
from loadtest.experiment.compare import CONFIDENCE, estimate
from loadtest.experiment.rows import Row
from loadtest.experiment.timeline import Timeline
from loadtest.report.plots_latency import plot_latencies
from loadtest.report.plots_load import LoadPoint, plot_loads
from loadtest.report.plots_timeline import plot_workers
from loadtest.report.slo import slo_words

Place = tuple[str, str, str]
"""Workload, fleet and SLO: one picture each."""


def draw_loads(rows: Sequence[Row], directory: Path) -> list[Path]:
    """Attainment and goodput against load, one PNG per workload, fleet and SLO."""
    pictures = []
    for place, here in _by_place(rows).items():
        by_rate = all(row.offered_per_s is not None for row in here)
        picture = directory / f"load-{'-'.join(place)}.png"
        plot_loads(
            {policy: _points(here, policy, "attained_ratio", by_rate) for policy in _policies(here)},
            {policy: _points(here, policy, "goodput_per_s", by_rate) for policy in _policies(here)},
            picture,
            load_words="Arrivals per second" if by_rate else "Load (times the trace's rate)",
            title=_title(place, here),
            note=_seeds_note(here),
        )
        pictures.append(picture)
    return pictures


def draw_latencies(rows: Sequence[Row], records: Callable[[str], list[Record]], directory: Path) -> list[Path]:
    """Distributions of TTFT and TPOT, one PNG per workload, fleet and SLO; `records` gives a run's by its key."""
    pictures = []
    for place, here in _by_place(rows).items():
        picture = directory / f"latency-{'-'.join(place)}.png"
        loads = {
            _load_words(here, load): {policy: _pooled(here, policy, load, records) for policy in _policies(here)}
            for load in dict.fromkeys(row.load for row in here)
        }
        plot_latencies(loads, _slo(here[0]), picture, title=_title(place, here))
        pictures.append(picture)
    return pictures


def draw_timeline(timeline: Timeline, label: str, directory: Path) -> list[Path]:
    """One run over time: a PNG of its workers, and a trace for chrome://tracing or Perfetto."""
    directory.mkdir(parents=True, exist_ok=True)
    stem = label.replace("/", "-")
    picture, trace = directory / f"{stem}.png", directory / f"{stem}.trace.json"
    plot_workers(dict(zip(timeline.workers, timeline.series, strict=True)), picture, title=label)
    write_trace(trace, timeline)
    return [picture, trace]


def _by_place(rows: Sequence[Row]) -> dict[Place, list[Row]]:
    places: dict[Place, list[Row]] = {}
    for row in rows:
        places.setdefault((row.workload, row.fleet, row.slo), []).append(row)
    return places


def _policies(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(row.policy for row in rows))


def _points(rows: Sequence[Row], policy: str, column: str, by_rate: bool) -> list[LoadPoint]:
    points = []
    for load in sorted({row.load for row in rows}):
        here = [row for row in rows if row.policy == policy and row.load == load]
        found = estimate(getattr(row, column) for row in here)
        rate = estimate(row.offered_per_s for row in here)
        if found is not None:
            points.append(
                LoadPoint(
                    load=rate.mean if by_rate and rate is not None else load,
                    mean=found.mean,
                    low=found.mean if found.low is None else found.low,
                    high=found.mean if found.high is None else found.high,
                )
            )
    return points


def _pooled(rows: Sequence[Row], policy: str, load: float, records: Callable[[str], list[Record]]) -> list[Record]:
    here = [row for row in rows if row.policy == policy and row.load == load]
    return [record for row in here for record in records(row.key)]


def _load_words(rows: Sequence[Row], load: float) -> str:
    rate = estimate(row.offered_per_s for row in rows if row.load == load)
    return f"load {load:g}" if rate is None else f"{rate.mean:.2g}/s"


def _title(place: Place, rows: Sequence[Row]) -> str:
    workload, fleet, _ = place
    return f"{workload} on {fleet}: {slo_words(_slo(rows[0]))}"


def _slo(row: Row) -> SloTarget:
    return SloTarget(name=row.slo, ttft_s=row.slo_ttft_s, tpot_s=row.slo_tpot_s)


def _seeds_note(rows: Sequence[Row]) -> str:
    seeds = len({row.seed for row in rows})
    return "one seed" if seeds == 1 else f"{seeds} seeds; bands: {CONFIDENCE:.0%} t intervals"
