"""Every panel of both dashboards, asked of a real Prometheus that has watched a fleet under load."""

import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from PIL import Image

from deploy.grafana.generate import DASHBOARDS, DIRECTORY
from deploy.grafana.model import COLUMNS
from deploy.grafana.preview import HEAD_PX, ROW_PX, WIDTH_PX, render
from deploy.grafana.results import Answers, QueryError, ask
from tests.deploy.prometheus_lab import (
    PATH_MIX,
    PROMETHEUS,
    QUICK,
    REAL_TIME,
    ROUTING,
    SELECTION_SHARE,
    Observed,
    dashboard,
    last_values,
    observed_fleet,
    until,
    without_numbers,
)
from tests.fleet.shared.redis_lab import needs_server

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(PROMETHEUS is None, reason="prometheus is not installed (apt-get install prometheus)"),
    needs_server,
]

PICTURES = {"slo-overview.json": "dashboard-slo.png", "routing-decisions.json": "dashboard-routing.png"}
MAX_PICTURE_BYTES = 250_000
"""They are shown in the documentation."""
PICTURES_DIRECTORY = os.environ.get("TIDEGATE_PICTURES")
BACKGROUND_COLOURS = 3
"""Page, panel and frame: a panel with nothing drawn has no more."""
ABOUT_THE_MACHINE = "TidegateSlo.*|TidegateErrorRatio.*|TidegateEventLoopLag|TidegateStaleSamples|TidegateDown"
"""Alerts that a machine without CPU to spare may well raise; `rules_test.yml` tests them."""
METRIC = re.compile(r"\b(?:tidegate_|vllm:)[a-z0-9_]+")


@pytest.fixture(scope="module")
def observed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Observed]:
    """With TIDEGATE_PICTURES=docs/images, three minutes in real time, and the documentation's pictures anew."""
    scenario = REAL_TIME if PICTURES_DIRECTORY else QUICK
    with observed_fleet(tmp_path_factory.mktemp("observed"), scenario) as running:
        yield running


@pytest.fixture(scope="module")
def answers(observed: Observed) -> Mapping[str, Answers]:
    return observed.answers


@pytest.mark.parametrize("name", DASHBOARDS)
def test_every_query_of_every_panel_has_numbers(name: str, answers: Mapping[str, Answers]) -> None:
    assert list(without_numbers(name, answers[name])) == []


@pytest.mark.parametrize("name", DASHBOARDS)
def test_every_metric_asked_for_is_on_a_page(name: str, observed: Observed) -> None:
    pages = observed.pages()
    shown = {line.split("{")[0].split(" ")[0] for line in pages.splitlines() if not line.startswith("#")}
    text = (DIRECTORY / name).read_text()
    asked = set(METRIC.findall(text))
    assert asked - shown == set()
    assert asked


def test_shares_add_up(answers: Mapping[str, Answers]) -> None:
    share = last_values(answers, ROUTING, SELECTION_SHARE)
    assert share.keys() == {f"{role}: {role}-{number}" for role in ("prefill", "decode") for number in (0, 1)}
    assert sum(value or 0.0 for value in share.values()) == pytest.approx(2.0)  # one whole for each leg
    mix = last_values(answers, ROUTING, PATH_MIX)
    assert mix.keys() == {"local", "remote"}
    assert sum(value or 0.0 for value in mix.values()) == pytest.approx(1.0)


def test_the_worker_table_has_a_line_for_every_worker(answers: Mapping[str, Answers]) -> None:
    (panel,) = [panel for panel in dashboard("slo-overview.json")["panels"] if panel["title"] == "Workers"]
    for found in answers["slo-overview.json"][panel["id"]]:
        labels = {(series.labels["worker"], series.labels["role"]) for series in found}
        assert labels == {(f"{role}-{number}", role) for role in ("prefill", "decode") for number in (0, 1)}


def test_recording_rules_have_values_and_no_alert_fires_on_a_healthy_fleet(observed: Observed) -> None:
    for record in ("tidegate:slo_burn_rate:5m", "tidegate:request_failures:ratio_rate5m"):
        until(lambda record=record: observed.query(record), f"{record} has a value")
    assert observed.query(f'ALERTS{{alertname!~"{ABOUT_THE_MACHINE}", alertstate="firing"}}') == []


def test_a_wrong_expression_is_told(observed: Observed) -> None:
    broken = dashboard("slo-overview.json")
    broken["panels"][0]["targets"][0]["expr"] = "sum by (nothing"
    with pytest.raises(QueryError, match="parse error"):
        ask(observed.prometheus_url, broken, observed.span)


@pytest.mark.parametrize("name", DASHBOARDS)
def test_the_previewer_draws_it(name: str, answers: Mapping[str, Answers], tmp_path: Path) -> None:
    picture = tmp_path / PICTURES[name]
    render(dashboard(name), answers[name], picture)
    assert picture.stat().st_size < MAX_PICTURE_BYTES
    with Image.open(picture) as drawn:
        blank = [panel["title"] for panel in dashboard(name)["panels"] if is_blank(drawn, panel["gridPos"])]
    assert blank == []
    if PICTURES_DIRECTORY:
        shutil.copy(picture, Path(PICTURES_DIRECTORY) / picture.name)


def is_blank(drawn: Image.Image, place: dict[str, int]) -> bool:
    """Whether nothing is drawn below a panel's title."""
    column_px = WIDTH_PX / COLUMNS
    top = HEAD_PX + place["y"] * ROW_PX + 34
    bottom = HEAD_PX + (place["y"] + place["h"]) * ROW_PX
    box = (place["x"] * column_px, top, (place["x"] + place["w"]) * column_px, bottom)
    return len(drawn.crop(tuple(map(int, box))).convert("RGB").getcolors(1 << 16) or ()) <= BACKGROUND_COLOURS
