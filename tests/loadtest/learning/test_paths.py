import re
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gateway.core.path.priced import JointPolicy
from gateway.core.path.rules import AlwaysLocal, DynamoMode, DynamoRule
from gateway.core.types import SloTarget
from loadtest.fleet.pools import parse_pools
from loadtest.learning.command import learn
from loadtest.learning.dynamo_grid import DynamoGrid
from loadtest.learning.kinds import Kind
from loadtest.learning.paths import Judged, PathPlan, keep, learn_paths, split
from loadtest.learning.prices import Traffic, Trial
from loadtest.learning.rules import tune
from loadtest.learning.simulated import SimulatedFleet
from policy_store.bundle import new_bundle, read_bundle
from policy_store.learn.prices import Score
from policy_store.path_models import costs_of, model_of, to_policy
from policy_store.store import FileStore

FLEET = SimulatedFleet(
    pools=parse_pools("1P1D"), engine="h100-llama8b", slo=SloTarget(name="run", ttft_s=0.5, tpot_s=0.02)
)
TRIAL = Trial(fleet=FLEET, traffic=Traffic(trace="synthetic:mooncake?rate=1", requests=40))
ONE_RULE = DynamoGrid(eff_isl_tokens=(2048,), ratios=(0.7,), busy=(), has_load_alone=False)


def score(attained: float, ttft_s: float = 1.0) -> Score:
    return Score(attained_ratio=attained, ttft_p90_s=ttft_s, tpot_p90_s=0.02)


def test_the_tuned_rule_is_the_best_of_those_that_were_tried() -> None:
    rules = [DynamoRule(eff_isl_threshold=0), DynamoRule(eff_isl_threshold=10**9, eff_isl_ratio_threshold=1.0)]
    scores = [TRIAL.score(rule) for rule in rules]
    tuned = tune(TRIAL, rules=rules)
    assert tuned.score == max(scores, key=lambda one: one.attained_ratio)
    assert "uncached tokens" in tuned.words
    load = DynamoRule(mode=DynamoMode.ISL_OR_LOAD, prefill_busy_threshold=2.0)
    assert "busy above 2 budgets" in replace(tuned, rule=load).words


def test_judging_traffic_is_what_follows_the_learning_traffic() -> None:
    trial = replace(TRIAL, traffic=replace(TRIAL.traffic, first=5, requests=70))
    learned, judging = split(trial, 0.4, range(2))
    assert [one.traffic.seed for one in judging] == [0, 1]
    learning, rest, whole = (one.traffic.load() for one in (learned, judging[0], trial))
    assert (len(learning), len(rest)) == (28, 42)
    assert [one.input_tokens for one in (*learning, *rest)] == [one.input_tokens for one in whole]


def test_differences_are_taken_seed_by_seed_in_points_and_shares() -> None:
    ours = Judged(name="ours", scores=[score(0.9, 1.0), score(0.8, 3.0)])
    theirs = Judged(name="theirs", scores=[score(0.7, 2.0), score(0.7, 4.0)])
    attained, ttft = ours.beside(theirs, "attained_ratio"), ours.beside(theirs, "ttft_p90_s")
    assert attained is not None
    assert attained.mean == pytest.approx(0.15)
    assert ttft is not None
    assert ttft.mean == pytest.approx(-0.375)


@pytest.mark.parametrize("kind", [Kind.JOINT, Kind.PRICED])
def test_a_priced_policy_is_learned_judged_and_bundled_with_its_prices(
    kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loadtest.learning.rules.COARSE", ONE_RULE)
    trial, judging = split(TRIAL, 0.5, range(2))
    plan = PathPlan(kind=kind, trial=trial, judging=judging, budget=4)
    result = learn_paths(plan)
    assert [judged.name for judged in result.judged] == [kind, "dynamo, tuned", "dynamo, defaults"]
    assert all(len(judged.scores) == 2 for judged in result.judged)
    assert costs_of(result.bundle.path) == TRIAL.costs()
    assert to_policy(result.bundle.path, AlwaysLocal()).name == kind
    assert result.bundle.manifest.provenance["pools"] == "1P1D"
    assert learn_paths(plan).bundle.version == result.bundle.version


def test_the_command_writes_a_bundle_adds_it_to_a_store_and_says_how_to_use_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loadtest.learning.rules.COARSE", ONE_RULE)
    options = ["--trace", TRIAL.traffic.trace, "--requests", "200", "--pools", "1P1D", "--engine", "h100-llama8b"]
    options += ["--budget", "4", "--seeds", "2", "--jobs", "1", "--slo", "ttft=500ms,tpot=20ms"]
    shown = CliRunner().invoke(learn, ["paths", *options, "--store", str(tmp_path)], terminal_width=200)
    assert shown.exit_code == 0, shown.output
    assert "Learned on 100 requests, judged on the 100 that follow" in shown.output
    (version,) = FileStore(tmp_path).versions()
    assert f"tidegate policy activate {version}" in shown.output.replace("\n", " ")
    assert read_bundle(FileStore(tmp_path).directory(version)).manifest.kind == "joint"


def test_a_bundle_is_kept_where_it_is_asked_for(tmp_path: Path) -> None:
    made = new_bundle(model_of(JointPolicy(baseline=AlwaysLocal()), TRIAL.costs()))
    for store, place in ((None, tmp_path / "new" / "out"), (tmp_path / "store", tmp_path / "store")):
        kept = keep(made, out=tmp_path / "new" / "out", store=store)
        assert kept.is_relative_to(place)
        assert read_bundle(kept).version == made.version


def test_what_cannot_be_is_one_message(tmp_path: Path) -> None:
    shown = CliRunner().invoke(learn, ["paths", "--engine", "abacus", "--requests", "200"])
    assert shown.exit_code == 2
    assert re.search(r"no engine is called\s+'abacus'", re.sub(r"[│\n ]+", " ", shown.output))
