"""What every path policy and every scorer owes: one test, so that a new one cannot forget a clause.

An answer is deterministic, total over anything that a worker or a client can cause, within its bounds, and it
leaves no trace in the policy or in its input.
"""

import math
from copy import deepcopy
from dataclasses import FrozenInstanceError, fields
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.calibration import Calibration
from gateway.core.forecast import Forecast
from gateway.core.path.base import PathPolicy, PathQuestion
from gateway.core.path.priced import JointPolicy, PricedPolicy
from gateway.core.path.regime import RegimePolicy, Regimes
from gateway.core.path.rules import AlwaysLocal, AlwaysRemote, DynamoMode, DynamoRule, LlmdRule
from gateway.core.path.table import GaussianMixture, KMeans, Scaler, TablePolicy
from gateway.core.placement import SCORERS, Placement, Pool
from gateway.core.types import Features, Path, Reason, Role, SloTarget, WorkerId, WorkerView
from tests.core.factories import COSTS, question

ROWS = ((5.0, 4.0, 3.0, 5.0), (8.0, 8.0, 8.0, 5.0), (10.0, 9.0, 2.0, 7.0))
IDENTITY = tuple(tuple(float(i == j) for j in range(4)) for i in range(4))
SCALER = Scaler(mean=(6.0, 5.0, 5.0, 5.0), std=(2.0, 2.0, 0.0, 1.0))
BASELINE = DynamoRule(mode=DynamoMode.ISL_OR_LOAD, prefill_busy_threshold=1.0)
ACTIONS = (Path.LOCAL, Path.REMOTE, Path.LOCAL)
MIXTURE = GaussianMixture(weights=(0.5, 0.3, 0.2), means=ROWS, precisions_cholesky=(IDENTITY,) * 3)

POLICIES: dict[str, PathPolicy] = {
    "local": AlwaysLocal(),
    "remote": AlwaysRemote(),
    "llmd": LlmdRule(non_cached_tokens=512, prompt_tokens=64),
    "kmeans": TablePolicy(scaler=SCALER, clusters=KMeans(centroids=ROWS), actions=ACTIONS, baseline=BASELINE),
    "gmm": TablePolicy(scaler=SCALER, clusters=MIXTURE, actions=ACTIONS, baseline=BASELINE),
    "exploring table": TablePolicy(
        scaler=SCALER, clusters=MIXTURE, actions=ACTIONS, baseline=BASELINE, epsilon=(0.0, 0.1, 1.0)
    ),
    "table-regime": RegimePolicy(
        scaler=SCALER,
        clusters=KMeans(centroids=ROWS),
        regimes=Regimes(prefill_backlog_tokens=(4096.0,), decode_requests=(8.0, 32.0)),
        actions=((Path.LOCAL, Path.REMOTE) * 3,) * 3,
        epsilon=((0.0, 0.5) * 3,) * 3,
        baseline=BASELINE,
    ),
    "priced": PricedPolicy(baseline=BASELINE),
    "joint": JointPolicy(baseline=BASELINE),
    **{
        f"dynamo {mode}": DynamoRule(mode=mode, prefill_busy_threshold=0.5, decode_busy_threshold=0.8)
        for mode in DynamoMode
    },
}

ANOTHER = question(1)
FEW = settings(max_examples=40)

counts = st.one_of(st.integers(0, 100), st.integers(0, 2**63 - 1))
sizes = st.one_of(st.none(), st.integers(1, 256), st.integers(1, 2**53))
ratios = st.one_of(st.none(), st.floats(0.0, 1.0), st.floats(0.0, 2.0**53))
bounds = st.none() | st.floats(1e-6, 1e6)


@st.composite
def views(draw: st.DrawFn, isl: int) -> WorkerView:
    return WorkerView(
        worker_id=WorkerId(draw(st.sampled_from(["w0", "w1"]))),
        role=draw(st.sampled_from(Role)),
        inflight_requests=draw(counts),
        resident_requests=draw(counts),
        prefill_tokens=draw(counts),
        kv_tokens=draw(counts),
        kv_capacity_tokens=draw(sizes),
        kv_used_ratio=draw(ratios),
        kv_resident_ratio=draw(ratios),
        queue_depth=draw(st.none() | counts),
        hit_tokens=draw(st.integers(0, isl)),
        max_batched_tokens=draw(sizes),
        kv_block_tokens=draw(sizes),
    )


@st.composite
def questions(draw: st.DrawFn) -> PathQuestion:
    isl = draw(counts)
    prefill, decode = draw(views(isl)), draw(views(isl))
    return PathQuestion(
        features=Features(
            isl_tokens=isl,
            prefill_isl_tokens=isl - prefill.hit_tokens,
            decode_isl_tokens=isl - decode.hit_tokens,
            osl_tokens=draw(st.one_of(st.floats(0, 1e6), st.floats())),
        ),
        prefill=prefill,
        decode=decode,
        now_s=draw(st.floats(0, 1e9)),
        slo=draw(st.none() | st.builds(SloTarget, name=st.just("x"), ttft_s=bounds, tpot_s=bounds)),
        forecast=draw(st.none() | st.just(Forecast(COSTS, Calibration()))),
    )


@st.composite
def pools(draw: st.DrawFn) -> tuple[list[WorkerView], int]:
    isl = draw(counts)
    return draw(st.lists(views(isl), min_size=1, max_size=4)), isl


@pytest.mark.parametrize("name", POLICIES)
@FEW
@given(asked=questions(), seed=st.integers(0, 2**32))
def test_a_path_policy_keeps_its_contract(name: str, asked: PathQuestion, seed: int) -> None:
    policy = POLICIES[name]
    before = repr((policy, asked))
    choice = policy.choose(asked, Random(seed))
    assert isinstance(choice.path, Path)
    assert isinstance(choice.reason, Reason)
    assert choice.words
    assert 0.0 < choice.propensity <= 1.0
    # Asked again after another question, it says the same: nothing was kept from either.
    policy.choose(ANOTHER, Random(seed + 1))
    assert policy.choose(asked, Random(seed)) == choice
    assert deepcopy(policy).choose(asked, Random(seed)) == choice
    assert repr((policy, asked)) == before


@pytest.mark.parametrize("name", POLICIES)
def test_a_path_policy_is_frozen_and_named(name: str) -> None:
    policy = POLICIES[name]
    assert policy.name in name or policy.name == "table"
    for each in fields(policy):  # type: ignore[arg-type]
        with pytest.raises(FrozenInstanceError):
            setattr(policy, each.name, None)


@pytest.mark.parametrize("name", SCORERS)
@FEW
@given(drawn=pools())
def test_a_scorer_keeps_its_contract(name: str, drawn: tuple[list[WorkerView], int]) -> None:
    pool_views, isl = drawn
    before = repr(pool_views)
    scorer = SCORERS[name]
    scores = list(scorer(Pool.of(pool_views, isl)))
    assert len(scores) == len(pool_views)
    assert all(score is None or (math.isfinite(score) and 0.0 <= score <= 1.0) for score in scores)
    assert list(scorer(Pool.of(pool_views[::-1], isl))) == scores[::-1]
    assert repr(pool_views) == before


@FEW
@given(drawn=pools(), key=st.text(max_size=8))
def test_a_placement_ranks_any_pool(drawn: tuple[list[WorkerView], int], key: str) -> None:
    pool_views, isl = drawn
    placement = Placement(weights=tuple((name, 1.0) for name in SCORERS))
    pool = Pool.of(pool_views, isl)
    ranked = placement.rank(pool, key)
    assert len(ranked) == len(pool_views)
    assert all(0.0 <= candidate.total <= 1.0 for candidate in ranked)
    assert placement.rank(pool, key) == ranked
    assert [placement.rank(pool, key, limit) for limit in (1, 3)] == [ranked[:1], ranked[:3]]
