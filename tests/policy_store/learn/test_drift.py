import math
from random import Random

import pytest

from gateway.core.types import Features
from policy_store.learn.clusters import Clustering, ClusterPlan, fit_clusters
from policy_store.learn.drift import Drift, DriftPlan, drift, psi


def traffic(rows: int, *, long_share: float, seed: int, spread: float = 1.1) -> list[Features]:
    rng = Random(seed)
    made = []
    for _ in range(rows):
        centre = 8000 if rng.random() < long_share else 200
        isl = round(centre * rng.uniform(1 / spread, spread))
        osl = 100 * rng.uniform(0.5, 2.0)
        made.append(Features(isl_tokens=isl, prefill_isl_tokens=isl, decode_isl_tokens=isl, osl_tokens=osl))
    return made


@pytest.fixture(scope="module")
def fitted() -> Clustering:
    return fit_clusters(traffic(800, long_share=0.5, seed=1), ClusterPlan(k_max=4, n_init=2), seed=0)


def test_the_index_is_zero_for_equal_shares_and_symmetric() -> None:
    assert psi((0.3, 0.7), (0.3, 0.7)) == 0.0
    assert psi((0.3, 0.7), (0.5, 0.5)) == pytest.approx(psi((0.5, 0.5), (0.3, 0.7)))
    assert psi((0.5, 0.5), (0.25, 0.75)) == pytest.approx(0.25 * math.log(2) + 0.25 * math.log(1.5))


def test_an_empty_cluster_has_a_finite_index() -> None:
    assert 0.2 < psi((0.5, 0.5), (1.0, 0.0)) < math.inf


def test_the_same_traffic_has_not_drifted(fitted: Clustering) -> None:
    assert not drift(fitted, traffic(1000, long_share=0.5, seed=2)).exceeds(DriftPlan())


def test_other_shares_are_a_drift(fitted: Clustering) -> None:
    moved = drift(fitted, traffic(1000, long_share=0.9, seed=2))
    assert moved.psi > 0.2
    assert moved.exceeds(DriftPlan())


def test_requests_of_another_kind_are_a_drift_even_where_shares_stay(fitted: Clustering) -> None:
    moved = drift(fitted, traffic(1000, long_share=0.5, seed=2, spread=6.0))
    assert moved.fit_loss > 0.25
    assert moved.exceeds(DriftPlan())


def test_no_requests_are_no_drift(fitted: Clustering) -> None:
    assert drift(fitted, []) == Drift(psi=0.0, fit_loss=0.0)
