from dataclasses import replace
from pathlib import Path as FilePath
from random import Random
from typing import Any

import msgspec
import pytest

from gateway.core.path.base import PolicyError
from gateway.core.path.price import PriceWeights
from gateway.core.path.priced import JointPolicy, PricedPolicy
from gateway.core.path.regime import RegimePolicy, Regimes
from gateway.core.path.rules import AlwaysLocal
from gateway.core.path.table import FEATURES, GaussianMixture, KMeans, Scaler, TablePolicy
from gateway.core.types import Path, Reason
from policy_store.bundle import decode_path_model, new_bundle, read_bundle, write_bundle
from policy_store.faults import BundleError
from policy_store.path_models import FEATURES_OF, ScalerModel, TableModel, costs_of, kind_of, model_of, to_policy
from tests.core.factories import COSTS, question, view
from tests.policy_store.bundle_factories import KMEANS, MIXTURE, table


@pytest.mark.parametrize(("clusters", "kind"), [(KMEANS, KMeans), (MIXTURE, GaussianMixture)])
def test_a_table_becomes_the_policy_that_it_describes(clusters: Any, kind: type) -> None:
    policy = to_policy(table(clusters=clusters), AlwaysLocal())
    assert isinstance(policy, TablePolicy)
    assert isinstance(policy.clusters, kind)
    assert (policy.max_decode_kv_ratio, policy.max_local_tokens) == (0.8, 10_000)
    short, long = (policy.choose(question(isl), Random(0)) for isl in (6, 9_000))
    assert (short.path, short.cluster) == (Path.LOCAL, 0)
    assert (long.path, long.cluster) == (Path.REMOTE, 1)
    assert policy.choose(question(10_001), Random(0)).reason is Reason.GUARD_LONG_PROMPT
    full = question(6, decode=view(kv_resident_ratio=0.81))
    assert policy.choose(full, Random(0)).reason is Reason.GUARD_DECODE_KV


def test_the_defaults_of_a_table_are_those_of_the_policy() -> None:
    scaler = ScalerModel(mean=(0.0,) * 4, std=(1.0,) * 4)
    policy = to_policy(TableModel(scaler=scaler, clusters=KMEANS, actions=("local", "local")), AlwaysLocal())
    assert isinstance(policy, TablePolicy)
    assert (policy.max_decode_kv_ratio, policy.max_local_tokens) == (0.90, 16_384)


def test_every_kind_knows_its_features() -> None:
    assert set(FEATURES_OF) == {"table", "table-regime", "priced", "joint"}
    assert FEATURES_OF["table"] == FEATURES
    assert kind_of(table()) == "table"


REGIME = RegimePolicy(
    scaler=Scaler(mean=(0.0,) * 4, std=(1.0,) * 4),
    clusters=KMeans(centroids=KMEANS.centroids),
    regimes=Regimes(prefill_backlog_tokens=(4096.0,), decode_requests=(8.0,)),
    actions=((Path.LOCAL, Path.REMOTE, Path.LOCAL, Path.REMOTE),) * 2,
    epsilon=((0.0, 0.1, 0.0, 0.2),) * 2,
    baseline=AlwaysLocal(),
)
WEIGHTS = PriceWeights(ttft_pull=0.7, stall_price=0.2)
LEARNED = {
    "table": to_policy(table(epsilon=(0.1, 0.0)), AlwaysLocal()),
    "mixture": to_policy(table(clusters=MIXTURE), AlwaysLocal()),
    "table-regime": REGIME,
    "priced": PricedPolicy(weights=WEIGHTS, baseline=AlwaysLocal()),
    "joint": JointPolicy(weights=WEIGHTS, baseline=AlwaysLocal()),
}


@pytest.mark.parametrize("name", LEARNED)
def test_a_learned_policy_comes_back_from_its_bundle_as_it_was(name: str, tmp_path: FilePath) -> None:
    policy = LEARNED[name]
    directory = write_bundle(new_bundle(model_of(policy, COSTS)), tmp_path)
    back = read_bundle(directory)
    assert to_policy(back.path, AlwaysLocal()) == policy
    assert costs_of(back.path) == (COSTS if name in ("priced", "joint") else None)


def test_a_rule_has_no_model_and_a_price_needs_costs() -> None:
    for policy in (AlwaysLocal(), LEARNED["joint"]):
        with pytest.raises(PolicyError, match="no form"):
            model_of(policy)


def test_a_stored_price_without_a_newer_weight_has_its_default() -> None:
    raw = msgspec.to_builtins(model_of(LEARNED["joint"], COSTS))
    del raw["weights"]["queue_price"]
    back = to_policy(decode_path_model(msgspec.json.encode(raw)), AlwaysLocal())
    assert isinstance(back, JointPolicy)
    assert back.weights == replace(WEIGHTS, queue_price=PriceWeights().queue_price)


def test_prices_that_make_no_sense_are_refused() -> None:
    raw = msgspec.to_builtins(model_of(LEARNED["joint"], COSTS))
    raw["weights"]["stall_price"] = -1.0
    with pytest.raises(BundleError, match="stall_price"):
        decode_path_model(msgspec.json.encode(raw))
