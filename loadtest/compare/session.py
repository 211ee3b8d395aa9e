"""Runs a preset over the cores of a machine.

The rule of this module: a place is one task, done in one process, which loads its traffic once; places come as they
end, and what was simulated before is not simulated again.
"""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import joblib
import msgspec

from loadtest.compare.bounds import (
    Loss,
    Verdict,
    beside_strongest,
    learned_live,
    losses,
    no_loss,
    paper_rows,
    verdicts,
)
from loadtest.compare.cells import Place
from loadtest.compare.decision_cost import decision_costs
from loadtest.compare.effort import Effort
from loadtest.compare.limits import HOME, School, answer, at_home, attend, elsewhere
from loadtest.compare.live import LiveEffort, compare_live
from loadtest.compare.live_fleet import running_stand
from loadtest.compare.presets import Preset
from loadtest.compare.results import CellResult, DecisionCost, Finding, LiveResult, Skipped
from loadtest.compare.saturation import NoSaturationError
from loadtest.compare.study import Study, compare_place

Tell = Callable[[str], None]


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """All that a preset found."""

    preset: str
    is_claim: bool
    """False where traffic, seeds or cells are too few for one."""
    bounds: list[Verdict] = []
    strongest: list[Verdict] = []
    """The bounds' figures beside the strongest rule, whoever's it is."""
    paper: list[Verdict] = []
    losses: list[Loss] = []
    cells: list[CellResult] = []
    skipped: list[Skipped] = []
    findings: list[Finding] = []
    costs: list[DecisionCost] = []
    live: LiveResult | None = None

    @property
    def holds(self) -> bool:
        """Whether every bound is met."""
        return all(verdict.holds for verdict in self.bounds)


@dataclass(slots=True)
class _Found:
    cells: list[CellResult] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)


def run_preset(preset: Preset, *, data: Path | None, out: Path | None, jobs: int, tell: Tell) -> Report:
    """Everything that a preset asks for; `tell` hears of each cell as it ends."""
    if preset.measures_limits:
        return _limits(preset, data, out, jobs, tell)
    if preset.live is not None:
        return _live(preset, preset.live, data, out, tell)
    found = _Found()
    studies = [
        Study(place=place, loads=loads, effort=effort, data=data, out=out)
        for place in preset.places
        for effort, loads in preset.efforts(place)
    ]
    for cells, skipped in _each(studies, jobs):
        found.cells += cells
        found.skipped += skipped
        for cell in cells:
            tell(cell.label)
    order = {place.label: number for number, place in enumerate(preset.places)}
    cells = sorted(found.cells, key=lambda cell: (order[cell.label.rpartition("/")[0]], -cell.load))
    return Report(
        preset=preset.name,
        is_claim=preset.effort.proves and not preset.is_quick,
        bounds=[*verdicts(preset.bounds, cells), no_loss(cells)],
        strongest=beside_strongest(preset.bounds, cells),
        paper=paper_rows(cells),
        losses=losses(cells),
        cells=cells,
        skipped=found.skipped,
    )


def _limits(preset: Preset, data: Path | None, out: Path | None, jobs: int, tell: Tell) -> Report:
    study = Study(place=HOME, loads=(1.0,), effort=preset.effort, data=data, out=out)
    school = attend(study)
    tell(f"learned at {HOME.label}")
    costs = decision_costs(HOME, study.traffic(school.scale).load())
    found: list[Finding] = []
    questions = list(at_home(school))
    asked = (joblib.delayed(answer)(school, question) for question in questions)
    answers = joblib.Parallel(n_jobs=jobs, return_as="generator", batch_size=1)(asked)
    for question, findings in zip(questions, answers, strict=True):
        found += findings
        tell(f"{question.group}: {question.condition}")
    skipped: list[Skipped] = []
    tasks = (joblib.delayed(_abroad)(school, place, preset.broad or preset.effort) for place in preset.abroad)
    abroad = joblib.Parallel(n_jobs=jobs, return_as="generator", batch_size=1)(tasks)
    for place, (findings, without) in zip(preset.abroad, abroad, strict=True):
        found += findings
        skipped += without
        tell(f"elsewhere: {place.label}")
    return Report(
        preset=preset.name,
        is_claim=preset.effort.proves and not preset.is_quick,
        skipped=skipped,
        findings=found,
        costs=costs,
    )


def _live(preset: Preset, effort: LiveEffort, data: Path | None, out: Path | None, tell: Tell) -> Report:
    place = preset.places[0]
    study = Study(place=place, loads=preset.loads, effort=preset.effort, data=data, out=out)
    with tempfile.TemporaryDirectory(prefix="tidegate-live-") as scratch:
        # What is kept says what the gateway did; without a place for it nothing is.
        directory = Path(scratch) if out is None else out / "live"
        result = compare_live(study, effort, lambda: running_stand(place, effort.speed, directory), tell)
    return Report(preset=preset.name, is_claim=not preset.is_quick, bounds=[learned_live(result)], live=result)


def _abroad(school: School, place: Place, effort: Effort) -> tuple[list[Finding], list[Skipped]]:
    try:
        return elsewhere(school, place, effort), []
    except NoSaturationError as error:
        return [], [Skipped(place=place.label, why=str(error))]


def _each(studies: Sequence[Study], jobs: int) -> Iterator[tuple[list[CellResult], list[Skipped]]]:
    if jobs == 1:
        yield from map(_compared, studies)
        return
    tasks = (joblib.delayed(_compared)(study) for study in studies)
    yield from joblib.Parallel(n_jobs=jobs, return_as="generator_unordered", batch_size=1)(tasks)


def _compared(study: Study) -> tuple[list[CellResult], list[Skipped]]:
    cells: list[CellResult] = []
    try:
        cells.extend(compare_place(study))
    except NoSaturationError as error:
        return cells, [Skipped(place=study.place.label, why=str(error))]
    return cells, []
