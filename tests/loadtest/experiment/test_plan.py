from pathlib import Path
from typing import Any

import pytest

from gateway.core.types import Role
from loadtest.experiment.plan import PlanError, parse_plan, read_plan
from tests.loadtest.experiment.experiment_lab import TREE, plan
from tests.policy_store.bundle_factories import written

E, LARGER = "h100-llama8b", "a100-llama70b-tp4"


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"name": "a/b"}, "name: String should match"),
        ({"workloads": {}}, "workloads: "),
        ({"workloads": {"w": {"trace": "mooncake"}}}, "workloads.w.trace: unknown trace 'mooncake'"),
        ({"workloads": {"w": {"trace": "synthetic:mooncake", "requests": 0}}}, "workloads.w.requests: "),
        ({"fleets": {"f": {"pools": "1X", "engine": E}}}, "fleets.f.pools: pools are written like 2P2D"),
        ({"fleets": {"f": {"pools": "1P1D", "engine": "abacus"}}}, "fleets.f.engine: no engine is called 'abacus'"),
        ({"fleets": {"f": {"pools": "1P1D"}}}, "fleets.f: give either pools and engine, or groups"),
        ({"fleets": {"f": {"groups": [{"role": "prefill", "engine": E}]}}}, "fleets.f: no worker could decode"),
        ({"fleets": {"f": {"groups": [{"role": "both", "engine": E, "count": 0}]}}}, "fleets.f.groups.0.count: "),
        (
            {"fleets": {"f": {"groups": [{"role": "prefill", "engine": E}, {"role": "decode", "engine": LARGER}]}}},
            "fleets.f: the engines of a fleet must agree",
        ),
        ({"policies": {"p": "fastest"}}, "policies.p.policy: Input should be 'local'"),
        ({"policies": {"p": {"llmd": {"prompt_tokens": -1}}}}, "policies.p.llmd.prompt_tokens: "),
        ({"policies": {"p": {"bundle": "nowhere"}}}, "policies.p: cannot read policy bundle nowhere"),
        ({"policies": {"p": "dynamo", "q": {"bundel": "x"}}}, "policies.q.bundel: Extra inputs are not permitted"),
        ({"loads": [1.0, 0.0]}, "loads.1: Input should be greater than 0"),
        ({"loads": [1.0, 1.0]}, "loads: values must differ"),
        ({"slos": {"s": "fast"}}, "slos.s: not an SLO"),
        ({"seeds": 0}, "seeds: at least one seed"),
        ({"until_s": 0}, "until_s: "),
        ({"baseline": "best"}, "experiment: baseline: there is no policy 'best'"),
        ({"colour": "red"}, "colour: Extra inputs are not permitted"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_with_its_field(change: dict[str, Any], line: str) -> None:
    with pytest.raises(PlanError) as refused:
        parse_plan({**TREE, **change})
    assert any(told.startswith(line) for told in str(refused.value).splitlines()), str(refused.value)


def test_all_mistakes_are_told_at_once() -> None:
    with pytest.raises(PlanError) as refused:
        plan(loads=[-1], seeds=[1, 1], slos={"s": "?"})
    assert [line.partition(":")[0] for line in str(refused.value).splitlines()] == [
        "loads.0",
        "slos.s",
        "seeds",
    ]


def test_a_number_of_seeds_counts_from_zero_and_a_list_is_taken_as_it_is() -> None:
    assert plan(seeds=3).seeds == (0, 1, 2)
    assert plan(seeds=[7, 5]).seeds == (7, 5)


def test_a_name_and_a_bundle_are_short_for_routing_settings(tmp_path: Path) -> None:
    directory = written(tmp_path)
    short = plan(policies={"p": "local", "q": {"bundle": str(directory), "seed": 4}}).policies
    assert short["p"] == {"policy": "local"}
    assert short["q"] == {"policy": "learned", "bundle": str(directory), "seed": 4}


def test_pools_and_groups_say_the_same_fleet() -> None:
    groups = [{"role": "prefill", "engine": E, "count": 2}, {"role": "decode", "engine": E}]
    fleets = plan(fleets={"a": {"pools": "2P1D", "engine": E}, "b": {"groups": groups}}).fleets
    assert fleets["a"].workers() == fleets["b"].workers() == ((Role.PREFILL, E), (Role.PREFILL, E), (Role.DECODE, E))


def test_the_environment_has_no_say_in_a_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEGATE_ROUTING__POLICY", "nonsense")
    assert plan().policies["remote"] == {"policy": "remote"}


def test_a_key_that_comes_twice_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "twice.yaml"
    file.write_text("name: a\npolicies:\n  p: local\n  p: remote\n")
    with pytest.raises(PlanError, match="'p' comes twice"):
        read_plan(file)


@pytest.mark.parametrize("content", [None, "name: [", "- a list"])
def test_a_file_that_is_no_plan_is_refused(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "plan.yaml"
    if content is not None:
        file.write_text(content)
    with pytest.raises(PlanError):
        read_plan(file)
