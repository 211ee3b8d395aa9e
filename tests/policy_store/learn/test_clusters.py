import math
from random import Random

import numpy as np
import pytest
from sklearn.mixture import GaussianMixture as SklearnMixture

from gateway.core.path.base import PolicyError
from gateway.core.path.table import GaussianMixture, KMeans
from gateway.core.types import Features
from policy_store.learn.clusters import ClusterMethod, ClusterPlan, fit_clusters, fit_scaler

QUICK = ClusterPlan(k_max=5, n_init=2)


def request(isl: int, prefill: int | None = None, decode: int | None = None, osl: float = 100.0) -> Features:
    return Features(
        isl_tokens=isl,
        prefill_isl_tokens=isl if prefill is None else prefill,
        decode_isl_tokens=isl if decode is None else decode,
        osl_tokens=osl,
    )


def near(rng: Random, centre: float) -> int:
    return round(centre * rng.uniform(0.9, 1.1))


def three_kinds(rows: int = 600, seed: int = 1) -> list[Features]:
    """Short ones, long ones, and long ones whose prompt is mostly cached on both workers."""
    rng = Random(seed)
    made = []
    for number in range(rows):
        isl = near(rng, 200 if number % 3 == 0 else 8000)
        cached = round(isl * rng.uniform(0.85, 0.9)) if number % 3 == 2 else 0
        osl = rng.uniform(90, 110) * (10 if cached else 1)
        made.append(request(isl, isl - cached, isl - cached // 2, osl))
    return made


@pytest.mark.parametrize("method", ClusterMethod)
def test_kinds_of_requests_become_clusters(method: ClusterMethod) -> None:
    found = fit_clusters(three_kinds(), ClusterPlan(method=method, k_max=5, n_init=2), seed=0)
    fresh = three_kinds(90, seed=2)
    labels = [found.assign(each) for each in fresh]
    groups = [set(labels[start::3]) for start in range(3)]
    assert all(one.isdisjoint(other) for at, one in enumerate(groups) for other in groups[:at]), groups
    if method is ClusterMethod.KMEANS:
        assert len(found.model) == 3
    assert sum(found.shares) == pytest.approx(1.0)


def test_the_same_seed_gives_the_same_clusters() -> None:
    window = three_kinds()
    assert fit_clusters(window, QUICK, seed=3) == fit_clusters(window, QUICK, seed=3)


def test_the_scale_is_that_of_the_fit_window_alone() -> None:
    window = three_kinds()
    scaler = fit_scaler(window)
    assert scaler.mean[0] == pytest.approx(np.mean([math.log1p(each.isl_tokens) for each in window]))
    assert scaler.std[0] == pytest.approx(np.std([math.log1p(each.isl_tokens) for each in window]))


def test_a_constant_column_says_nothing_even_where_it_changes_later() -> None:
    scaler = fit_scaler([request(isl, osl=128.0) for isl in (10, 100, 1000)])
    later = scaler.transform(request(100, osl=5000.0))
    assert later[3] == pytest.approx(0.0, abs=1e-6)
    assert abs(scaler.transform(request(1000))[0]) > 1.0


def test_without_a_prefix_index_the_prompt_counts_once() -> None:
    scaler = fit_scaler([request(isl, osl=isl % 7) for isl in (10, 100, 1000, 2000)])
    vector = scaler.transform(request(50_000, osl=3.0))
    assert vector[1] == pytest.approx(0.0, abs=1e-6)
    assert vector[2] == pytest.approx(0.0, abs=1e-6)


def test_requests_that_are_all_alike_make_one_cluster() -> None:
    found = fit_clusters([request(100)] * 50, QUICK, seed=0)
    assert (len(found.model), found.shares) == (1, (1.0,))
    assert found.assign(request(70_000, osl=9.0)) == 0


def test_two_distinct_requests_can_be_clustered() -> None:
    assert len(fit_clusters([request(10), request(1000)] * 20, QUICK, seed=0).model) == 2


def test_a_small_cluster_falls_to_its_nearest() -> None:
    window = three_kinds(300) + [request(100_000, osl=4000.0)] * 3
    found = fit_clusters(window, ClusterPlan(k=4, min_share=0.02, n_init=2), seed=0)
    assert len(found.model) <= 3
    assert min(found.shares) >= 0.02


def test_the_number_of_clusters_can_be_fixed() -> None:
    assert len(fit_clusters(three_kinds(), ClusterPlan(k=6, min_share=0.0, n_init=2), seed=0).model) == 6


def test_a_mixtures_fit_is_its_mean_log_likelihood() -> None:
    window = three_kinds(200)
    plan = ClusterPlan(method=ClusterMethod.GMM, k=2, n_init=1)
    found = fit_clusters(window, plan, seed=0)
    assert isinstance(found.model, GaussianMixture)
    vectors = [found.scaler.transform(each) for each in window]
    theirs = SklearnMixture(2, covariance_type="full", n_init=1, random_state=0).fit(vectors)
    assert found.fit == pytest.approx(theirs.score(vectors), rel=1e-6)


def test_a_worse_window_fits_worse() -> None:
    found = fit_clusters(three_kinds(), QUICK, seed=0)
    assert isinstance(found.model, KMeans)
    assert found.fit_of(three_kinds(seed=5)) == pytest.approx(found.fit, rel=0.2)
    assert found.fit_of([request(1_000_000, osl=9000.0)] * 10) < 5 * found.fit


def test_nothing_cannot_be_clustered() -> None:
    with pytest.raises(PolicyError):
        fit_clusters([], QUICK, seed=0)
