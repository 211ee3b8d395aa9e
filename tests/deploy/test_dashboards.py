"""The generated dashboards as files: up to date, readable, and asking only for what exists."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from deploy.grafana import generate
from deploy.grafana.encode import BY_NAME, BY_QUERY
from deploy.grafana.generate import DASHBOARDS, DIRECTORY
from deploy.grafana.model import COLUMNS, Kind, Panel, Row, Unit
from deploy.grafana.results import Span, substituted, variables
from gateway.telemetry.metrics import METRICS, MetricType
from loadtest.engine.presets import load_engine
from loadtest.engine.types import EngineSnapshot
from loadtest.worker.metrics import WorkerStats, exposition

METRIC = re.compile(r"\b(?:tidegate_|vllm:)[a-z0-9_]+")
SPAN = Span(start_s=0.0, end_s=1800.0, step_s=5.0, rate_window_s=20.0)


def dashboard(name: str) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads((DIRECTORY / name).read_text())
    return parsed


PANELS = [(name, panel) for name in DASHBOARDS for panel in dashboard(name)["panels"]]
every_panel = pytest.mark.parametrize(
    ("name", "panel"), PANELS, ids=[f"{name.removesuffix('.json')}: {panel['title']}" for name, panel in PANELS]
)


def of_gateway() -> set[str]:
    suffixes = {MetricType.HISTOGRAM: ("_bucket", "_sum", "_count")}
    return {spec.full_name + suffix for spec in METRICS for suffix in suffixes.get(spec.type, ("",))}


def of_worker() -> set[str]:
    spec, _ = load_engine("h100-llama8b")
    snapshot = EngineSnapshot(**dict.fromkeys(EngineSnapshot.__struct_fields__, 0))
    page = exposition(model="m", spec=spec, snapshot=snapshot, stats=WorkerStats(), expired_holds=0).decode()
    return {re.split(r"[{ ]", line)[0] for line in page.splitlines() if not line.startswith("#")}


def test_the_files_are_up_to_date() -> None:
    assert generate.main(["--check"]) == 0, "run python -m deploy.grafana.generate"


def test_a_stale_missing_or_foreign_file_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check = ["--check", "--out", str(tmp_path)]
    assert generate.main(check) == 1
    assert generate.main(["--out", str(tmp_path)]) == 0
    assert generate.main(check) == 0
    (tmp_path / "slo-overview.json").write_text("{}\n")
    (tmp_path / "by-hand.json").write_text("{}\n")
    assert generate.main(check) == 1
    assert "stale: by-hand.json, slo-overview.json;" in capsys.readouterr().err


def test_dashboards_have_names_of_their_own() -> None:
    parsed = [dashboard(name) for name in DASHBOARDS]
    assert len({board["uid"] for board in parsed}) == len({board["title"] for board in parsed}) == len(parsed)


@pytest.mark.parametrize("name", DASHBOARDS)
def test_panels_have_ids_and_titles_of_their_own(name: str) -> None:
    panels = dashboard(name)["panels"]
    assert len({panel["id"] for panel in panels}) == len({panel["title"] for panel in panels}) == len(panels)


@pytest.mark.parametrize("name", DASHBOARDS)
def test_panels_lie_in_the_grid_and_never_on_each_other(name: str) -> None:
    places = [panel["gridPos"] for panel in dashboard(name)["panels"]]
    assert all(place["x"] + place["w"] <= COLUMNS for place in places)
    cells = [(x, y) for place in places for x in _span(place["x"], place["w"]) for y in _span(place["y"], place["h"])]
    assert len(set(cells)) == len(cells)


def _span(start: int, length: int) -> range:
    return range(start, start + length)


def test_a_row_that_leaves_a_gap_is_refused() -> None:
    narrow = Panel(kind=Kind.STAT, title="t", description="d", unit=Unit.COUNT, width=COLUMNS - 1)
    with pytest.raises(ValueError, match="do not fill"):
        Row(height=4, panels=(narrow,))


@every_panel
def test_a_panel_says_what_it_shows_and_in_which_unit(name: str, panel: dict[str, Any]) -> None:
    assert panel["description"].endswith(".")
    assert panel["fieldConfig"]["defaults"]["unit"] in set(Unit)
    assert panel["fieldConfig"]["defaults"]["noValue"] == "no traffic"
    assert any(mapping["options"].get("match") == "nan" for mapping in panel["fieldConfig"]["defaults"]["mappings"])


@every_panel
def test_thresholds_rise_from_a_base(name: str, panel: dict[str, Any]) -> None:
    base, *steps = [step["value"] for step in panel["fieldConfig"]["defaults"]["thresholds"]["steps"]]
    assert base is None
    assert steps == sorted(steps)


@every_panel
def test_a_panel_asks_only_for_declared_metrics(name: str, panel: dict[str, Any]) -> None:
    asked = {metric for target in panel["targets"] for metric in METRIC.findall(target["expr"])}
    assert asked - of_gateway() - of_worker() == set()
    assert asked, "a panel without a metric shows nothing"


@every_panel
def test_every_variable_of_a_query_exists(name: str, panel: dict[str, Any]) -> None:
    known = variables(dashboard(name), SPAN)
    for target in panel["targets"]:
        assert "$" not in substituted(target["expr"], known)
    refs = [target["refId"] for target in panel["targets"]]
    assert len(set(refs)) == len(refs)


@every_panel
def test_an_override_is_for_a_query_or_a_column_that_the_panel_has(name: str, panel: dict[str, Any]) -> None:
    renamed = panel.get("transformations", [{}, {"options": {"renameByName": {}}}])[1]["options"]["renameByName"]
    known = {BY_QUERY: {target["refId"] for target in panel["targets"]}, BY_NAME: set(renamed.values())}
    for override in panel["fieldConfig"]["overrides"]:
        assert override["matcher"]["options"] in known[override["matcher"]["id"]]


@pytest.mark.parametrize("name", DASHBOARDS)
def test_variables_are_read_from_declared_labels(name: str) -> None:
    labels = {spec.full_name: spec.labels for spec in METRICS}
    for variable in dashboard(name)["templating"]["list"]:
        if variable["type"] == "query":
            metric, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"]["query"]).groups()  # type: ignore[union-attr]
            assert label in (*labels[metric], "instance")


def test_variables_are_put_in_whole() -> None:
    values = {"slo": "a", "slo_objective": "b", "__rate_interval": "20s"}
    assert substituted("$slo_objective ${slo} [$__rate_interval]", values) == "b a [20s]"
    with pytest.raises(KeyError):
        substituted("$unknown", values)
