"""`python -m deploy.grafana.preview`: draws the dashboards from a Prometheus, without Grafana.

The rule of this module: it shows the generated JSON on the 24-column grid with real answers, and every picture says
that Grafana did not draw it. Needs matplotlib (`pip install '.[loadtest]'`).
"""

import argparse
import io
import json
import sys
import time
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from PIL import Image

from deploy.grafana.generate import DASHBOARDS, DIRECTORY
from deploy.grafana.model import COLUMNS
from deploy.grafana.preview_panels import GRID, TEXT, TIMED, below_px, draw
from deploy.grafana.results import Answers, Span, ask

Json = Mapping[str, Any]

WIDTH_PX = 1500
ROW_PX = 36
HEAD_PX = 44
DPI = 100
GAP_PX = 4
PAGE = "#111217"
PANEL = "#181b1f"
PNG_COLOURS = 192
"""Enough for flat colours, and a quarter of the bytes."""
MADE_BY = "drawn by the previewer, not by Grafana"

_LEFT_PX = {"timeseries": 62, "state-timeline": 70}
"""Room beside a panel's axes, where ticks need more than the default."""
_SIDE_PX, _ABOVE_PX, _BELOW_PX = 12, 34, 10


def render(dashboard: Json, answers: Answers, path: Path) -> None:
    """Write a PNG of a dashboard with its panels' series; raises ValueError where there is none at all."""
    height_px = HEAD_PX + ROW_PX * max(place["y"] + place["h"] for place in _places(dashboard))
    figure = Figure(figsize=(WIDTH_PX / DPI, height_px / DPI), dpi=DPI, facecolor=PAGE)
    FigureCanvasAgg(figure)
    times_s = [time_s for found in answers.values() for series in chain(*found) for time_s in series.times_s]
    page = _Page(figure, height_px, start_s=min(times_s), end_s=max(times_s))
    page.write(12, 28, dashboard["title"], size=14)
    page.write(WIDTH_PX - 12, 28, MADE_BY, size=9, align="right")
    for panel in dashboard["panels"]:
        page.add(panel, answers)
    _save(figure, path)


def _places(dashboard: Json) -> list[Json]:
    return [panel["gridPos"] for panel in dashboard["panels"]]


class _Page:
    """A figure measured in pixels from its top left corner."""

    def __init__(self, figure: Figure, height_px: int, *, start_s: float, end_s: float) -> None:
        self._figure = figure
        self._height_px = height_px
        self._start_s = start_s
        self._end_s = end_s

    def write(self, x_px: float, y_px: float, words: str, *, size: float, align: str = "left") -> None:
        x, y = x_px / WIDTH_PX, 1 - y_px / self._height_px
        self._figure.text(x, y, words, color=TEXT, fontsize=size, ha=align)

    def add(self, panel: Json, answers: Answers) -> None:
        place = panel["gridPos"]
        x_px = place["x"] * WIDTH_PX / COLUMNS + GAP_PX
        y_px = HEAD_PX + place["y"] * ROW_PX + GAP_PX
        width_px = place["w"] * WIDTH_PX / COLUMNS - 2 * GAP_PX
        height_px = place["h"] * ROW_PX - 2 * GAP_PX
        x, y, width, height = self._box(x_px, y_px, width_px, height_px)
        self._figure.patches.append(
            Rectangle((x, y), width, height, fc=PANEL, ec=GRID, lw=0.8, zorder=-1, transform=self._figure.transFigure)
        )
        self.write(x_px + 10, y_px + 20, panel["title"], size=10)
        found = answers[panel["id"]]
        left_px = _LEFT_PX.get(panel["type"], _SIDE_PX)
        inner_px = width_px - left_px - _SIDE_PX
        under_px = _BELOW_PX + (below_px(panel, found, inner_px) if panel["type"] in TIMED else 0)
        inner = self._box(x_px + left_px, y_px + _ABOVE_PX, inner_px, height_px - _ABOVE_PX - under_px)
        axes = self._figure.add_axes(inner, facecolor=PANEL)
        draw(axes, panel, found, start_s=self._start_s, end_s=self._end_s)

    def _box(self, x_px: float, y_px: float, width_px: float, height_px: float) -> tuple[float, float, float, float]:
        bottom_px = self._height_px - y_px - height_px
        return x_px / WIDTH_PX, bottom_px / self._height_px, width_px / WIDTH_PX, height_px / self._height_px


def _save(figure: Figure, path: Path) -> None:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", facecolor=PAGE)
    buffer.seek(0)
    with Image.open(buffer) as picture:
        flat = picture.convert("RGB").quantize(PNG_COLOURS, dither=Image.Dither.NONE)
    path.parent.mkdir(parents=True, exist_ok=True)
    flat.save(path, optimize=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Draw every dashboard from the last minutes of a Prometheus."""
    parser = argparse.ArgumentParser(prog="python -m deploy.grafana.preview", description=__doc__)
    parser.add_argument("--prometheus", default="http://127.0.0.1:9090", help="base URL of the Prometheus")
    parser.add_argument("--minutes", type=float, default=30.0, help="how far back to show")
    parser.add_argument("--scrape-interval", type=float, default=5.0, help="of that Prometheus, in seconds")
    parser.add_argument("--out", type=Path, default=Path("out/dashboards"), help="directory of the pictures")
    options = parser.parse_args(argv)
    end_s = time.time()
    start_s = end_s - 60.0 * options.minutes
    step_s = max(options.scrape_interval, (end_s - start_s) / 300)
    span = Span(start_s=start_s, end_s=end_s, step_s=step_s, rate_window_s=4 * options.scrape_interval)
    for name in DASHBOARDS:
        dashboard = json.loads((DIRECTORY / name).read_text())
        picture = options.out / Path(name).with_suffix(".png").name
        render(dashboard, ask(options.prometheus, dashboard, span), picture)
        print(picture)
    return 0


if __name__ == "__main__":
    sys.exit(main())
