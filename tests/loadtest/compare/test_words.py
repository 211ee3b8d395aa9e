import pytest

from gateway.core.path.base import PathPolicy
from gateway.core.path.price import PriceWeights
from gateway.core.path.priced import JointPolicy
from gateway.core.path.regime import RegimePolicy, Regimes
from gateway.core.path.rules import AlwaysLocal, DynamoMode, DynamoRule, LlmdRule
from gateway.core.path.table import KMeans, Scaler, TablePolicy
from gateway.core.types import Path
from loadtest.compare.words import clusters_of, words

SCALER = Scaler(mean=(6.0, 5.0, 4.0, 3.0), std=(1.0, 1.0, 1.0, 1.0))
CENTRES = KMeans(centroids=((0.0, 0.0, 0.0, 0.0), (2.0, 1.0, 1.0, 0.0)))
TABLE = TablePolicy(scaler=SCALER, clusters=CENTRES, actions=(Path.LOCAL, Path.REMOTE), baseline=AlwaysLocal())
REGIMES = RegimePolicy(
    scaler=SCALER,
    clusters=CENTRES,
    regimes=Regimes(decode_requests=(8.0,)),
    actions=((Path.LOCAL, Path.REMOTE), (Path.REMOTE, Path.REMOTE)),
    baseline=AlwaysLocal(),
)


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (AlwaysLocal(), "always local"),
        (DynamoRule(), "isl_bounding, eff_isl 2048, ratio 0.7"),
        (
            DynamoRule(mode=DynamoMode.PREFILL_LOAD, prefill_busy_threshold=2.0, decode_busy_threshold=0.9),
            "prefill_load, busy 2, guard 0.9",
        ),
        (LlmdRule(), "never remote"),
        (LlmdRule(non_cached_tokens=512), "remote from 512 uncached tokens"),
        (TABLE, "2 clusters: LR"),
        (REGIMES, "2 clusters x 2 regimes: LR RR"),
        (JointPolicy(baseline=AlwaysLocal()), "built-in weights"),
        (JointPolicy(weights=PriceWeights(stall_price=0.5), baseline=AlwaysLocal()), "stall_price 0.5"),
    ],
)
def test_a_policy_is_said_in_few_words(policy: PathPolicy, expected: str) -> None:
    assert words(policy) == expected


def test_clusters_are_given_in_tokens() -> None:
    short, long = clusters_of(TABLE)
    assert short.prompt == pytest.approx(402.4, abs=0.1)
    assert long.prompt == pytest.approx(2980.0, abs=0.1)
    assert (short.local, long.local) == (1.0, 0.0)


def test_over_regimes_a_cluster_is_local_in_part() -> None:
    assert [cluster.local for cluster in clusters_of(REGIMES)] == [0.5, 0.0]
    assert clusters_of(DynamoRule()) == []
