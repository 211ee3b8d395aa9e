from dataclasses import replace

import pytest
import typer
from typer.testing import CliRunner

from loadtest.simulator import bench
from loadtest.simulator.bench import ENGINES, FLEETS, Case, Cost, cost_table, growth, measure

CASE = Case(
    fleet="1P1D",
    engine="h100-llama8b",
    trace="synthetic:azure-conv",
    policy="dynamo",
    requests=200,
    rate_per_worker_rps=1.0,
)
COST = Cost(case=CASE, cpu_s=0.1, events=1000, simulated_s=10.0, ended_well=200, peak_memory_mib=50.0)


def test_workers_have_the_same_load_on_every_fleet() -> None:
    small, large = measure(CASE), measure(replace(CASE, fleet="2P6D"))
    assert small.ended_well == large.ended_well == 200
    # Four times the workers get the same requests in a quarter of the time, but for the end of the last answer.
    assert small.simulated_s == pytest.approx(100.0, rel=0.2)
    assert large.simulated_s == pytest.approx(25.0, rel=0.4)
    assert small.events > 200
    assert small.peak_memory_mib > 1.0


def test_a_request_costs_its_share() -> None:
    assert COST.request_s == pytest.approx(0.0005)


def test_growth_is_between_the_dearest_and_the_cheapest_of_one_engine() -> None:
    costs = [replace(COST, cpu_s=cpu_s) for cpu_s in (0.2, 0.1, 0.25)]
    other = replace(COST, case=replace(CASE, engine="h100-llama70b-tp4"), cpu_s=9.0)
    assert growth([*costs, other], "h100-llama8b") == pytest.approx(2.5)
    assert growth([*costs, other], "h100-llama70b-tp4") == 1.0


@pytest.mark.parametrize(
    ("cpu_s", "status"),
    [
        (lambda case: 0.1, 0),
        (lambda case: 0.1 if case.fleet == "1P1D" else 0.11 * 2, 1),
        (lambda case: 0.13, 1),
    ],
    ids=["flat", "grows", "dear"],
)
def test_the_command_measures_all_cases_and_says_what_is_missed(
    monkeypatch: pytest.MonkeyPatch, cpu_s: object, status: int
) -> None:
    asked: list[Case] = []

    def fake(case: Case) -> Cost:
        asked.append(case)
        return replace(COST, case=case, cpu_s=cpu_s(case))  # type: ignore[operator]

    monkeypatch.setattr(bench, "measure_apart", fake)
    app = typer.Typer()
    app.command()(bench.main)
    result = CliRunner().invoke(app, ["--requests", "200"])
    assert result.exit_code == status, result.output
    assert [(case.engine, case.fleet) for case in asked] == [(engine, fleet) for engine in ENGINES for fleet in FLEETS]
    assert "µs/request" in result.output
    assert "100,000 requests take at most" in result.output


def test_the_table_has_a_row_a_case() -> None:
    assert cost_table([COST, COST]).row_count == 2


@pytest.mark.e2e
def test_a_case_can_have_a_process_of_its_own() -> None:
    assert bench.measure_apart(replace(CASE, requests=20)).ended_well == 20
