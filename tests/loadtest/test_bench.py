"""The bench of whole decisions, small: what it measures, and what it would call a miss."""

from pathlib import Path

import pytest

from loadtest.bench import BOUNDS, POLICIES, Cost, cost, judged
from loadtest.report.plot_decisions import CostLine, plot_costs


def cell(p50: float, p99: float = 100.0, *, prompt_bytes: int) -> Cost:
    return Cost(workers=16, prompt_bytes=prompt_bytes, peek_p50=1.0, decide_p50=1.0, p50=p50, p99=p99, json_p50=1.0)


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_is_measured_as_a_whole(policy: str) -> None:
    found = cost(POLICIES[policy](), 4, 1024, runs=20)
    assert (found.workers, found.prompt_bytes) == (4, 1024)
    assert 0 < found.peek_p50 < found.p50 <= found.p99
    assert 0 < found.decide_p50 < found.p50


def test_each_bound_is_named_with_what_was_found() -> None:
    lines = judged([cell(59.0, 201.0, prompt_bytes=4096), cell(351.0, prompt_bytes=131_072)])
    assert ["MISS" in line for line in lines] == [False, True, True]
    assert "16 workers, 4 KB: P50 59.0 of at most 60" in lines[0]
    assert len(BOUNDS) == 2


def test_a_picture_is_drawn_in_the_format_of_its_name(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    line = CostLine(xs=(4, 16), p50_us=(50.0, 60.0), p99_us=(90.0, 120.0))
    plot_costs(
        {"default": line}, {"default": line}, tmp_path / "costs.svg", bound_us=60.0, fixed=("4 KB", "16 workers")
    )
    assert (tmp_path / "costs.svg").read_text().startswith("<?xml")
