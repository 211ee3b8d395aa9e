"""The comparison of conversations from end to end, over the smallest of studies."""

from dataclasses import asdict
from pathlib import Path

import pytest

from gateway.core.path.price import PriceWeights
from gateway.core.path.priced import JointPolicy
from gateway.core.path.rules import AlwaysLocal
from loadtest.conserve import session
from loadtest.conserve.arms import Place
from loadtest.conserve.learning import START
from loadtest.conserve.report import markdown
from loadtest.conserve.results import CellFigures
from loadtest.conserve.study import Study
from policy_store.bundle import read_bundle
from policy_store.path_models import to_policy

PLACE = Place(workload="miniswe", pools="1P3D")


@pytest.fixture(autouse=True)
def nothing_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    def learned_at_once(study: Study, tell: object) -> tuple[list[CellFigures], PriceWeights]:
        return [], START

    monkeypatch.setattr(session, "compare_place", learned_at_once)


def test_what_combined_learned_is_kept_as_a_bundle_that_a_gateway_can_serve(tmp_path: Path) -> None:
    report = session.run_conserve(data=None, out=tmp_path, jobs=1, quick=True, tell=print)
    version = report.bundles[PLACE.label]
    bundle = read_bundle(tmp_path / "policies" / version)
    policy = to_policy(bundle.path, AlwaysLocal())
    assert isinstance(policy, JointPolicy)
    assert asdict(policy.weights) == pytest.approx(asdict(START))
    assert version in markdown(report)


def test_without_a_directory_nothing_is_kept() -> None:
    report = session.run_conserve(data=None, out=None, jobs=1, quick=True, tell=print)
    assert report.bundles == {}
    assert "bundle" not in markdown(report)
