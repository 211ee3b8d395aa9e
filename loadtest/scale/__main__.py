"""`python -m loadtest.scale`: many gateway replicas beside one that sees everything, and what a decision costs.

The rule of this module: it turns options into runs and prints them as they end; nothing is judged here but the bound.
"""

import math
from collections.abc import Sequence
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from gateway.core.policy import Policy
from loadtest.engine.presets import UnknownEngine
from loadtest.fleet.pools import parse_pools
from loadtest.scale.decisions import SIZES, decision_cost
from loadtest.scale.run import Arm, Figures, Place, arms, chosen, difference, serve
from loadtest.scale.workload import ScaleMix

SATURATION_RPS = 1.22
"""Per worker of the default fleet and mix: at this rate one router that sees everything keeps the SLO for 70 %."""
BOUND_POINTS = 2.0


def main(
    *,
    pools: Annotated[str, typer.Option(help="500P500D: 500 prefill and 500 decode workers.")] = "500P500D",
    engine: Annotated[str, typer.Option(help="A preset or an engine file.")] = "h100-llama70b-tp4",
    replicas: Annotated[str, typer.Option(help="Numbers of gateways, with commas between them.")] = "10,100",
    load: Annotated[float, typer.Option(min=0.01, help="Share of the saturating rate.")] = 0.75,
    saturation: Annotated[float, typer.Option(min=0.01, help="That rate, per worker and second.")] = SATURATION_RPS,
    requests: Annotated[int, typer.Option(min=100, help="Per arm and seed.")] = 40_000,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each arm.")] = 5,
    conversations: Annotated[float, typer.Option(min=0.0, max=1.0, help="Share of requests like Mooncake's.")] = 0.5,
    trimmed: Annotated[float, typer.Option(min=0.0, max=1.0, help="Of long histories, the share that is cut.")] = 0.0,
    tenants: Annotated[int, typer.Option(min=0, help="System prompts of requests like Azure's.")] = 0,
    only: Annotated[str, typer.Option(help="Of the arms with several gateways those with one of these words.")] = "",
    decisions: Annotated[bool, typer.Option(help="Measure what a decision costs, too.")] = True,
) -> None:
    """Serve one workload by one all-seeing router and by many that are not; exit status 1 beyond two points."""
    console = Console(width=130)
    mix = ScaleMix(conversation_ratio=conversations, trim_ratio=trimmed, tenants=tenants)
    try:
        fleet = parse_pools(pools)
        rate_rps = load * saturation * len(fleet.roles())
        place = Place(pools=fleet, engine=engine, mix=mix, rate_rps=rate_rps, requests=requests)
        compared = chosen(arms([int(count) for count in replicas.split(",")]), only)
        figures = _serve_all(console, place, compared, seeds)
    except (UnknownEngine, ValueError) as error:
        raise typer.BadParameter(str(error)) from error
    title = f"{pools}, {rate_rps:,.0f} requests/s ({load:.0%} of saturation), {seeds} seeds of {requests:,} requests"
    console.print(_table(title, compared, figures))
    if decisions:
        console.print(_decision_table())
    judged = [own for arm, own in zip(compared, figures, strict=True) if arm.plan.loads is not None]
    raise typer.Exit(any(difference(own, figures[0]).points < -BOUND_POINTS for own in judged))


def _serve_all(console: Console, place: Place, compared: Sequence[Arm], seeds: int) -> list[list[Figures]]:
    figures: list[list[Figures]] = [[] for _ in compared]
    for seed in range(seeds):
        workload = place.workload(seed)
        for arm, own in zip(compared, figures, strict=True):
            own.append(served := serve(place, arm, workload, seed=seed))
            console.print(f"seed {seed}, {arm.name}: {served.attained_ratio:.1%} in {served.cpu_s:.0f} s of CPU")
    return figures


def _table(title: str, compared: Sequence[Arm], figures: Sequence[Sequence[Figures]]) -> Table:
    table = Table(title=title, title_justify="left")
    for name in ("gateways", "attained", "points", "TTFT P50/P90, s", "TPOT P50/P90, ms", "cached", "decision P50, µs"):
        table.add_column(name, justify="left" if name == "gateways" else "right")
    for arm, own in zip(compared, figures, strict=True):
        beside = difference(own, figures[0])
        width = "" if beside.half_width is None else f" ± {beside.half_width:.1f}"
        table.add_row(
            arm.name,
            f"{_mean(own, 'attained_ratio'):.1%}",
            "" if own is figures[0] else f"{beside.points:+.1f}{width}",
            f"{_mean(own, 'ttft_p50_s'):.2f} / {_mean(own, 'ttft_p90_s'):.2f}",
            f"{1e3 * _mean(own, 'tpot_p50_s'):.1f} / {1e3 * _mean(own, 'tpot_p90_s'):.1f}",
            f"{_mean(own, 'hit_ratio'):.1%}",
            f"{_mean(own, 'decision_p50_us'):.0f}",
        )
    return table


def _mean(figures: Sequence[Figures], name: str) -> float:
    return math.fsum(getattr(each, name) for each in figures) / len(figures)


def _decision_table() -> Table:
    """All workers, the bounded number of candidates, and one of a hundred gateways with a part of its own."""
    policies = {
        "all workers": Policy(max_candidates=None),
        "max_candidates 64": Policy(),
        "and a part of its own": Policy(replicas=100, replica=0),
    }
    table = Table(title="Decision P50 / P90, µs, by workers", title_justify="left")
    table.add_column("policy")
    for size in SIZES:
        table.add_column(str(size), justify="right")
    for name, policy in policies.items():
        costs = [decision_cost(size, policy) for size in SIZES]
        table.add_row(name, *(f"{cost.p50_us:,.0f} / {cost.p90_us:,.0f}" for cost in costs))
    return table


if __name__ == "__main__":
    typer.run(main)
