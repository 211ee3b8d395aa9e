from pathlib import Path

import pytest

from loadtest.compare.bounds import HEADLINE, beside_strongest, losses, no_loss, paper_rows, verdicts
from loadtest.compare.layout import NO_CLAIM
from loadtest.compare.pictures import draw
from loadtest.compare.report import bound_lines, markdown
from loadtest.compare.results import CellResult, Cluster, Course, DecisionCost, Finding, Skipped, Step
from loadtest.compare.session import Report
from tests.loadtest.compare.compare_lab import arm, cell, interval

COURSE = Course(
    arm="table",
    requests=300,
    scan_attained=0.6,
    run_attained=0.7,
    missed_for_scanning=20.0,
    steps=[Step(phase="scan", requests=200, attained=0.6), Step(phase="run", requests=100, attained=0.7)],
)
CLUSTER = Cluster(prompt=1000.0, prefill_uncached=500.0, decode_uncached=0.0, output=200.0, local=1.0)


def results() -> list[CellResult]:
    worse = {"tpot_p50_s": interval(0.05)}
    arms = [arm("dynamo-tuned"), arm("table"), arm("joint", tuned={"ttft_p90_s": interval(-0.2), **worse})]
    return [cell(*arms, load=load, courses=[COURSE], clusters={"table": [CLUSTER]}) for load in (1.0, 0.75)]


def report() -> Report:
    cells = results()
    return Report(
        preset="headline",
        is_claim=False,
        bounds=[*verdicts(HEADLINE, cells), no_loss(cells)],
        strongest=beside_strongest(HEADLINE, cells),
        paper=paper_rows(cells),
        losses=losses(cells),
        cells=cells,
        skipped=[Skipped(place="azure/1P1D", why="the SLO is never kept")],
        findings=[
            Finding(group="load", condition="20%", arm="joint", figures=cells[0].arms[0].figures, beside_rule={})
        ],
        costs=[DecisionCost(part="look-up, K 8", p50_us=3.0, p99_us=7.0, calls=10)],
    )


def test_a_report_says_what_was_asked_measured_and_lost() -> None:
    text = markdown(report(), ["tails.png"])
    assert NO_CLAIM in text
    assert "| mix/2P2D/h100-llama70b-tp4/standard/100%: ttft_p90_s of 'joint' against dynamo-tuned | 10% |" in text
    assert "+20.0% [+19.0%, +21.0%] | yes |" in text
    assert "## Losing cells" in text
    assert "tpot_p50_s" in text
    assert "5.7% to 7.9% lower" in text
    assert "Skipped: azure/1P1D: the SLO is never kept." in text
    assert "| look-up, K 8 | 3.0 | 7.0 | 10 |" in text
    assert "## Load" in text
    assert "![tails.png](tails.png)" in text


def test_a_bound_that_is_missed_is_marked() -> None:
    lines = bound_lines(report())
    assert lines[0].startswith("ok   mix/2P2D")
    assert lines[1].startswith("MISS mix/2P2D")
    assert lines[8].startswith("MISS 2 cells")
    assert lines[9].startswith("     mix/2P2D")
    assert not report().holds


def test_pictures_are_drawn_of_every_cell(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    drawn = {path.name.partition("-")[0] for path in draw(results(), tmp_path)}
    assert drawn == {"attainment", "tails", "clusters", "scanning"}
    assert len(list(tmp_path.glob("*.png"))) == 7
