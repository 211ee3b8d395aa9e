import pickle
from collections import Counter
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from loadtest.compare.bounds import losses
from loadtest.compare.cells import SLOS
from loadtest.compare.judge import BESIDE
from loadtest.compare.limits import (
    HOME,
    answer,
    at_home,
    attend,
    by_lengths,
    elsewhere,
    everywhere_else,
    neighbours,
)
from loadtest.compare.results import CellResult
from loadtest.compare.study import Study, compare_place
from loadtest.simulator.lengths import Lengths
from policy_store.bundle import read_bundle
from tests.loadtest.compare.compare_lab import PLACE, TINY


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    return Study(place=PLACE, loads=(1.0,), effort=TINY, data=None, out=tmp_path_factory.mktemp("out"))


@pytest.fixture(scope="module")
def result(study: Study) -> CellResult:
    (found,) = compare_place(study)
    return found


def test_a_cell_holds_every_arm_with_intervals(result: CellResult) -> None:
    names = [arm.name for arm in result.arms]
    assert names[0] == "dynamo-tuned"
    assert {"table", "table-regime", "priced", "joint", "local", "remote", "dynamo", "llmd-tuned"} <= set(names)
    assert len(set(names)) == len(names)
    for arm in result.arms:
        for found in arm.figures.values():
            assert found.low <= found.high
    assert result.saturation_ratio >= 0.7
    assert result.best in {"dynamo-tuned", *(arm.name for arm in result.arms if arm.is_learned)}
    assert result.stand_ins == ["traces/azure2023_conv.csv.gz"]
    assert result.seeds == 2


def test_an_arm_stands_beside_both_baselines_and_not_beside_itself(result: CellResult) -> None:
    assert "dynamo-tuned" not in result.arm("dynamo-tuned").beside
    assert set(result.arm("joint").beside) == set(BESIDE)
    assert {"dynamo-tuned", "dynamo-tuned, our placement", "llmd-tuned", "dynamo"} <= set(BESIDE)
    assert not result.arm(result.strongest).is_learned
    assert all(loss.cell == result.label for loss in losses([result]))


def test_what_was_learned_is_a_bundle_that_a_gateway_could_serve(study: Study, result: CellResult) -> None:
    assert study.out is not None
    for arm in result.arms:
        assert (arm.bundle is not None) is arm.is_learned
        if arm.bundle is not None:
            assert read_bundle(study.out / "policies" / arm.bundle).version == arm.bundle


def test_what_scanning_cost_is_told_of_tables(result: CellResult) -> None:
    courses = {course.arm: course for course in result.courses}
    assert courses["table"].steps
    assert courses["table"].requests >= TINY.table_requests
    assert not courses["joint"].steps
    assert set(result.clusters) == {"table", "table-regime"}


def test_a_repetition_gives_the_same_result(study: Study, result: CellResult, tmp_path: Path) -> None:
    (again,) = compare_place(replace(study, out=tmp_path))
    assert msgspec.json.encode(again) == msgspec.json.encode(result)


def test_limits_are_measured_under_every_condition(study: Study) -> None:
    school = attend(replace(study, effort=replace(study.effort, learners=("joint",))))
    questions = list(at_home(school))
    asked = Counter(question.group for question in questions)
    assert asked == {"output lengths": len(Lengths), "load": 5, "age of worker metrics": 3, "cost tables": 2 * (1 + 8)}
    assert len({(question.group, question.condition) for question in questions}) == len(questions)
    # One of each kind; the first arm is the rule, whom the others stand beside.
    for question in {question.group: question for question in questions}.values():
        rule, learned = answer(school, question)
        assert (rule.arm, learned.arm) == ("dynamo-tuned", "joint")
        assert (rule.group, rule.condition) == (question.group, question.condition)
        assert not rule.beside_rule
        assert learned.beside_rule
    abroad = elsewhere(school, replace(PLACE, slo=SLOS[PLACE.engine][1]), TINY)
    assert [one.arm for one in abroad] == ["dynamo-tuned", "joint"]


def test_lengths_are_known_in_every_way_that_there_is(study: Study) -> None:
    school = attend(replace(study, effort=replace(study.effort, learners=("joint",))))
    assert [question.condition for question in by_lengths(school)] == [str(each) for each in Lengths]


def test_a_study_can_go_to_another_process(study: Study) -> None:
    assert pickle.loads(pickle.dumps(study)) == study


def test_other_places_are_those_that_differ() -> None:
    assert len(neighbours()) == 3 + 3 + 1 + 1
    assert len(everywhere_else()) == 63
    assert HOME not in everywhere_else()
