"""Runs the whole comparison of conversations.

The rule of this module: one place after the other, each on all cores; what was served before is not served again.
"""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from gateway.core.path.price import PriceWeights
from loadtest.compare.bundles import keep_policy
from loadtest.conserve.arms import Place, combined
from loadtest.conserve.claims import P_RICH, claims
from loadtest.conserve.learning import RANGES
from loadtest.conserve.results import CellFigures, ConserveReport
from loadtest.conserve.runs import Runs
from loadtest.conserve.study import BASELINES, P_RICH_ONLY, QUICK, Effort, Study, compare_place

PLACES = tuple(
    Place(workload=workload, pools=pools) for workload in ("miniswe", "claude-code") for pools in ("2P2D", "1P3D")
)
QUICK_PLACES = (Place(workload="miniswe", pools="1P3D"),)


def run_conserve(
    *, data: Path | None, out: Path | None, jobs: int, quick: bool, tell: Callable[[str], None]
) -> ConserveReport:
    """Everything; `tell` hears of each step as it ends."""
    effort = QUICK if quick else Effort()
    runs = Runs(None if out is None else out / "runs", jobs)
    cells: list[CellFigures] = []
    weights, bundles = {}, {}
    for place in QUICK_PLACES if quick else PLACES:
        baselines = [arm for arm in BASELINES if place.pools == P_RICH or arm not in P_RICH_ONLY]
        study = Study(place=place, effort=effort, runs=runs, data=data, baselines=baselines)
        found, learned = compare_place(study, tell)
        cells += found
        weights[place.label] = {name: asdict(learned)[name] for name in RANGES}
        if out is not None:
            bundles[place.label] = _keep_bundle(place, learned, out)
    return ConserveReport(
        is_claim=effort.proves and not quick, claims=claims(cells), cells=cells, weights=weights, bundles=bundles
    )


def _keep_bundle(place: Place, weights: PriceWeights, out: Path) -> str:
    """Write what `combined` learned, which a gateway can serve; its version."""
    arm = combined(weights)
    learned = f"tidegate compare --preset conserve, {place.label}"
    return keep_policy(out, arm.path, arm.policy().costs, learned=learned, name=arm.name)
