from dataclasses import replace
from pathlib import Path as FilePath
from random import Random

import pytest

from gateway.core.path.base import PathPolicy, PathQuestion
from gateway.core.path.price import PriceWeights
from gateway.core.path.priced import JointPolicy, PricedPolicy
from gateway.core.path.regime import RegimePolicy, Regimes
from gateway.core.path.rules import AlwaysLocal, AlwaysRemote, DynamoMode, DynamoRule, LlmdRule
from gateway.core.path.table import GaussianMixture, KMeans, Scaler, TablePolicy
from gateway.core.types import Path, PathChoice, Reason
from gateway.policies import LEARNED_BASELINE, build_policy
from gateway.settings import Settings
from loadtest.learning.prices import fleet_costs
from loadtest.learning.publish import CannotPublish, routing_of
from tests.core.factories import question

ROWS = ((5.0, 4.0, 3.0, 5.0), (8.0, 8.0, 8.0, 5.0))
UNIT = tuple(tuple(float(i == j) for j in range(4)) for i in range(4))
TABLE = TablePolicy(
    scaler=Scaler(mean=(6.0, 5.0, 5.0, 5.0), std=(2.0, 2.0, 1.0, 1e9)),
    clusters=KMeans(centroids=ROWS),
    actions=(Path.LOCAL, Path.REMOTE),
    baseline=AlwaysRemote(),
    max_local_tokens=9000,
)
REGIMES = RegimePolicy(
    scaler=TABLE.scaler,
    clusters=TABLE.clusters,
    regimes=Regimes(prefill_backlog_tokens=(0.0,), decode_requests=(4.0,)),
    actions=((Path.LOCAL, Path.REMOTE) * 2, (Path.REMOTE,) * 4),
    epsilon=((0.5, 0.0, 0.0, 0.1), (0.0,) * 4),
    baseline=TABLE.baseline,
)
MIXED = replace(TABLE, clusters=GaussianMixture(weights=(0.5, 0.5), means=ROWS, precisions_cholesky=(UNIT, UNIT)))


@pytest.mark.parametrize(
    "policy",
    [
        AlwaysLocal(),
        AlwaysRemote(),
        DynamoRule(),
        DynamoRule(mode=DynamoMode.ISL_OR_LOAD, prefill_busy_threshold=2.0, decode_busy_threshold=0.8),
        LlmdRule(non_cached_tokens=512, prompt_tokens=64),
        TABLE,
        MIXED,
        replace(TABLE, epsilon=(0.5, 0.1)),
        REGIMES,
    ],
    ids=lambda policy: policy.name,
)
def test_the_gateway_builds_the_policy_that_was_meant(policy: PathPolicy, tmp_path: FilePath) -> None:
    routing = routing_of(policy, tmp_path)
    built = build_policy(Settings.model_validate({"routing": dict(routing)})).path
    assert type(built) is type(policy)
    for isl in (10, 500, 3000, 8999, 9001, 100_000):
        asked = question(isl, decode_hit=isl // 3)
        for seed in range(5):
            assert built.choose(asked, Random(seed)) == policy.choose(asked, Random(seed))


@pytest.mark.parametrize("kind", [JointPolicy, PricedPolicy])
def test_a_policy_by_price_goes_with_its_prices(kind: type[JointPolicy | PricedPolicy], tmp_path: FilePath) -> None:
    policy, costs = kind(weights=PriceWeights(stall_price=2.5), baseline=LEARNED_BASELINE), fleet_costs("h100-llama8b")
    routing = routing_of(policy, tmp_path, costs)
    built = build_policy(Settings.model_validate({"routing": dict(routing)}))
    assert (built.path, built.costs) == (policy, costs)
    with pytest.raises(CannotPublish, match=policy.name):
        routing_of(policy, tmp_path)


def test_equal_tables_are_one_bundle(tmp_path: FilePath) -> None:
    assert routing_of(TABLE, tmp_path) == routing_of(replace(TABLE), tmp_path)
    assert len(list(tmp_path.iterdir())) == 1


class Coin:
    """A policy of the test's own."""

    name = "coin"

    def choose(self, question: PathQuestion, rng: Random) -> PathChoice:
        del question
        path = rng.choice((Path.LOCAL, Path.REMOTE))
        return PathChoice(path=path, reason=Reason.ALWAYS_LOCAL, words="heads", propensity=0.5)


def test_what_nothing_can_say_is_refused(tmp_path: FilePath) -> None:
    with pytest.raises(CannotPublish, match="coin"):
        routing_of(Coin(), tmp_path)
    assert list(tmp_path.iterdir()) == []
