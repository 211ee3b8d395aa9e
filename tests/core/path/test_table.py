import math
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.cluster import KMeans as SklearnKMeans
from sklearn.mixture import GaussianMixture as SklearnMixture
from sklearn.preprocessing import StandardScaler

from gateway.core.path.base import PolicyError
from gateway.core.path.rules import AlwaysLocal
from gateway.core.path.table import GaussianMixture, KMeans, Scaler, TablePolicy
from gateway.core.types import Features, Path, PathChoice, Reason
from tests.core.factories import features, question, view

POINTS = 4_000
WIDTH = 4


def _tokens(rng: np.random.Generator, rows: int) -> np.ndarray:
    """Feature rows as traffic has them: heavy-tailed prompts, partly cached, and fractional outputs."""
    isl = np.floor(np.exp(rng.normal(6.5, 1.5, rows)))
    hits = np.floor(isl[:, None] * rng.beta(0.6, 0.8, (rows, 2)))
    return np.column_stack([isl, isl - hits[:, 0], isl - hits[:, 1], np.exp(rng.normal(5.0, 1.0, rows))])


def _features(row: np.ndarray) -> Features:
    return Features(
        isl_tokens=int(row[0]),
        prefill_isl_tokens=int(row[1]),
        decode_isl_tokens=int(row[2]),
        osl_tokens=float(row[3]),
    )


def _scaler(fitted: StandardScaler) -> Scaler:
    return Scaler(mean=tuple(fitted.mean_.tolist()), std=tuple(np.sqrt(fitted.var_).tolist()))


def _rows(array: np.ndarray) -> tuple[tuple[float, ...], ...]:
    return tuple(map(tuple, array.tolist()))


@pytest.fixture(scope="module")
def fitted() -> tuple[StandardScaler, np.ndarray, np.ndarray, np.ndarray]:
    """(scaler, training vectors, fresh raw rows, their vectors)."""
    rng = np.random.default_rng(20)
    scaler = StandardScaler().fit(np.log1p(_tokens(rng, 2_000)))
    train = scaler.transform(np.log1p(_tokens(rng, 2_000)))
    fresh = _tokens(rng, POINTS)
    return scaler, train, fresh, scaler.transform(np.log1p(fresh))


def test_scaling_equals_scikit_learns(fitted: Any) -> None:
    scaler, _, fresh, vectors = fitted
    ours = [_scaler(scaler).transform(_features(row)) for row in fresh]
    np.testing.assert_allclose(ours, vectors, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("clusters", [1, 2, 8, 12])
def test_kmeans_assigns_as_scikit_learn_predicts(fitted: Any, clusters: int) -> None:
    _, train, _, vectors = fitted
    model = SklearnKMeans(n_clusters=clusters, n_init=2, random_state=0).fit(train)
    ours = KMeans(centroids=_rows(model.cluster_centers_))
    assert [ours.assign(vector) for vector in vectors.tolist()] == model.predict(vectors).tolist()


@pytest.mark.parametrize("components", [1, 2, 6])
def test_mixture_assigns_as_scikit_learn_predicts(fitted: Any, components: int) -> None:
    _, train, _, vectors = fitted
    model = SklearnMixture(components, covariance_type="full", random_state=0).fit(train)
    ours = GaussianMixture(
        weights=tuple(model.weights_.tolist()),
        means=_rows(model.means_),
        precisions_cholesky=tuple(map(_rows, model.precisions_cholesky_)),
    )
    assert [ours.assign(vector) for vector in vectors.tolist()] == model.predict(vectors).tolist()


def test_the_lower_cluster_wins_a_tie() -> None:
    twins = ((1.0,) * WIDTH, (-1.0,) * WIDTH)
    assert KMeans(centroids=twins).assign((0.0,) * WIDTH) == 0
    identity = tuple(tuple(float(i == j) for j in range(WIDTH)) for i in range(WIDTH))
    mixture = GaussianMixture(weights=(0.5, 0.5), means=twins, precisions_cholesky=(identity, identity))
    assert mixture.assign((0.0,) * WIDTH) == 0


def test_a_constant_column_is_not_divided_by_zero() -> None:
    scaler = Scaler(mean=(0.0,) * WIDTH, std=(1.0, 1.0, 1.0, 0.0))
    assert scaler.transform(features(osl=0.0))[3] == 0.0
    assert all(map(math.isfinite, scaler.transform(features(osl=256.0))))


# --- the policy ------------------------------------------------------------------------------------------------------

# Two clusters by prompt length alone: about 10 tokens, and about 1000.
SHORT, LONG = (math.log1p(10), 0.0, 0.0, 0.0), (math.log1p(1000), 0.0, 0.0, 0.0)


def table(**changes: Any) -> TablePolicy:
    fields: dict[str, Any] = {
        "scaler": Scaler(mean=(0.0,) * WIDTH, std=(1.0, 1e9, 1e9, 1e9)),
        "clusters": KMeans(centroids=(SHORT, LONG)),
        "actions": (Path.LOCAL, Path.REMOTE),
        "baseline": AlwaysLocal(),
        **changes,
    }
    return TablePolicy(**fields)


def choose(policy: TablePolicy, isl: int, *, kv_resident_ratio: float | None = None, osl: float = 256.0) -> PathChoice:
    return policy.choose(question(isl, decode=view(kv_resident_ratio=kv_resident_ratio), osl=osl), Random(0))


def test_the_cluster_names_the_path() -> None:
    short, long = choose(table(), 12), choose(table(), 900)
    assert (short.path, short.cluster, short.reason) == (Path.LOCAL, 0, Reason.CLUSTER)
    assert (long.path, long.cluster, long.reason) == (Path.REMOTE, 1, Reason.CLUSTER)


@pytest.mark.parametrize(
    ("ratio", "reason"),
    [(None, Reason.CLUSTER), (0.89, Reason.CLUSTER), (0.90, Reason.CLUSTER), (0.91, Reason.GUARD_DECODE_KV)],
)
def test_a_full_decode_worker_prefills_nothing(ratio: float | None, reason: Reason) -> None:
    choice = choose(table(), 12, kv_resident_ratio=ratio)
    assert choice.reason is reason
    assert choice.path is (Path.LOCAL if reason is Reason.CLUSTER else Path.REMOTE)


@pytest.mark.parametrize(
    ("isl", "reason"), [(499, Reason.CLUSTER), (500, Reason.CLUSTER), (501, Reason.GUARD_LONG_PROMPT)]
)
def test_a_long_prompt_never_prefills_locally(isl: int, reason: Reason) -> None:
    policy = table(max_local_tokens=500, actions=(Path.LOCAL, Path.LOCAL))
    choice = choose(policy, isl)
    assert choice.reason is reason
    assert choice.path is (Path.LOCAL if reason is Reason.CLUSTER else Path.REMOTE)


def test_guards_have_the_defaults_of_the_method() -> None:
    assert (table().max_decode_kv_ratio, table().max_local_tokens) == (0.90, 16_384)


def test_a_guarded_request_has_no_cluster() -> None:
    assert choose(table(), 12, kv_resident_ratio=0.95).cluster is None


@pytest.mark.parametrize("osl", [math.nan, math.inf, -1.0, -math.inf])
def test_features_that_are_no_numbers_go_to_the_baseline(osl: float) -> None:
    assert choose(table(), 12, osl=osl).reason is Reason.ALWAYS_LOCAL


def test_a_scaler_that_overflows_goes_to_the_baseline() -> None:
    policy = table(scaler=Scaler(mean=(-1e308,) * WIDTH, std=(0.0,) * WIDTH))
    assert choose(policy, 12).reason is Reason.ALWAYS_LOCAL


@given(st.integers(0, 10**6), st.floats(allow_nan=True, allow_infinity=True))
def test_any_features_get_an_answer(isl: int, osl: float) -> None:
    choice = choose(table(), isl, osl=osl)
    assert choice.reason in (Reason.CLUSTER, Reason.GUARD_LONG_PROMPT, Reason.ALWAYS_LOCAL)


# --- exploration -----------------------------------------------------------------------------------------------------


def test_without_rates_nothing_is_explored_and_nothing_drawn() -> None:
    rng = Random(0)
    before = rng.getstate()
    choice = table().choose(question(12), rng)
    assert (choice.reason, choice.propensity) == (Reason.CLUSTER, 1.0)
    assert rng.getstate() == before


def test_a_cluster_explores_at_its_own_rate_and_says_how_likely_each_path_was() -> None:
    policy = table(epsilon=(0.4, 0.0))
    rng = Random(3)
    short = [policy.choose(question(12), rng) for _ in range(1000)]
    other = [choice for choice in short if choice.path is Path.REMOTE]
    assert 150 <= len(other) <= 250  # half of 0.4
    assert {(choice.reason, choice.propensity, choice.cluster) for choice in other} == {(Reason.EXPLORATION, 0.2, 0)}
    assert {(choice.reason, choice.propensity) for choice in short if choice.path is Path.LOCAL} == {
        (Reason.CLUSTER, 0.8)
    }
    assert {choose(policy, 900).propensity} == {1.0}


def test_a_guarded_request_is_never_explored() -> None:
    policy = table(epsilon=(1.0, 1.0))
    choices = {policy.choose(question(12, decode=view(kv_resident_ratio=0.95)), Random(seed)) for seed in range(20)}
    assert {(choice.path, choice.reason, choice.propensity) for choice in choices} == {
        (Path.REMOTE, Reason.GUARD_DECODE_KV, 1.0)
    }


@pytest.mark.parametrize("epsilon", [(0.1,), (0.1, 0.1, 0.1), (-0.1, 0.0), (1.1, 0.0), (math.nan, 0.0), (1e-320, 0.0)])
def test_rates_of_exploration_are_ratios_one_per_cluster(epsilon: tuple[float, ...]) -> None:
    with pytest.raises(PolicyError, match="exploration rates"):
        table(epsilon=epsilon)


# --- construction ----------------------------------------------------------------------------------------------------

UNIT = tuple(tuple(float(i == j) for j in range(WIDTH)) for i in range(WIDTH))
CENTRE = (0.0,) * WIDTH


def test_a_table_needs_an_action_per_cluster() -> None:
    with pytest.raises(PolicyError, match="1 actions for 2 clusters"):
        table(actions=(Path.LOCAL,))


@pytest.mark.parametrize("guard", [{"max_decode_kv_ratio": -0.1}, {"max_local_tokens": -1}])
def test_a_table_refuses_negative_guards(guard: dict[str, Any]) -> None:
    with pytest.raises(PolicyError, match=next(iter(guard))):
        table(**guard)


def test_guards_of_zero_send_every_request_away() -> None:
    policy = table(max_decode_kv_ratio=0.0, max_local_tokens=0)
    assert choose(policy, 1).reason is Reason.GUARD_LONG_PROMPT
    assert choose(policy, 0, kv_resident_ratio=0.01).reason is Reason.GUARD_DECODE_KV
    assert choose(policy, 0, kv_resident_ratio=0.0).reason is Reason.CLUSTER


@pytest.mark.parametrize(
    "columns",
    [
        {"mean": (0.0,) * 3, "std": (1.0,) * 4},
        {"mean": (0.0,) * 4, "std": (1.0,) * 5},
        {"mean": (0.0,) * 4, "std": (1.0, 1.0, 1.0, -1.0)},
        {"mean": (0.0,) * 4, "std": (1.0, 1.0, 1.0, math.nan)},
    ],
)
def test_a_scaler_refuses_columns_that_make_no_sense(columns: dict[str, Any]) -> None:
    with pytest.raises(PolicyError):
        Scaler(**columns)


@pytest.mark.parametrize("centroids", [(), ((0.0,) * 3,), (CENTRE, (0.0,) * 5)])
def test_kmeans_refuses_centres_of_another_width(centroids: Any) -> None:
    with pytest.raises(PolicyError):
        KMeans(centroids=centroids)


@pytest.mark.parametrize(
    "parts",
    [
        {"weights": (), "means": (), "precisions_cholesky": ()},
        {"weights": (0.5, 0.5), "means": (CENTRE,), "precisions_cholesky": (UNIT,)},
        {"weights": (1.0,), "means": (CENTRE,), "precisions_cholesky": ()},
        {"weights": (0.0,), "means": (CENTRE,), "precisions_cholesky": (UNIT,)},
        {"weights": (-1.0,), "means": (CENTRE,), "precisions_cholesky": (UNIT,)},
        {"weights": (1.0,), "means": ((0.0,) * 3,), "precisions_cholesky": (UNIT,)},
        {"weights": (1.0,), "means": (CENTRE,), "precisions_cholesky": (UNIT[:3],)},
        {"weights": (1.0,), "means": (CENTRE,), "precisions_cholesky": ((*UNIT[:3], (0.0, 0.0, 0.0, 0.0)),)},
        {"weights": (1.0,), "means": (CENTRE,), "precisions_cholesky": ((*UNIT[:3], (1.0,)),)},
    ],
)
def test_a_mixture_refuses_parts_that_do_not_agree(parts: dict[str, Any]) -> None:
    with pytest.raises(PolicyError):
        GaussianMixture(**parts)
