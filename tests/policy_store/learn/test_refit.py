from gateway.core.path.table import KMeans, Scaler
from gateway.core.types import Path
from policy_store.learn.bandit import Arm, Cell
from policy_store.learn.clusters import Clustering
from policy_store.learn.refit import carried_over, match

UNIT = Scaler(mean=(0.0,) * 4, std=(1.0,) * 4)
LOCAL, REMOTE = Path.LOCAL, Path.REMOTE


def clustering(*firsts: float, scaler: Scaler = UNIT) -> Clustering:
    """Centres that differ in the first column alone."""
    model = KMeans(centroids=tuple((first, 0.0, 0.0, 0.0) for first in firsts))
    return Clustering(scaler=scaler, model=model, shares=(1.0 / len(firsts),) * len(firsts), fit=-1.0)


def cell(value: float, incumbent: Path = LOCAL) -> Cell:
    return Cell(incumbent=incumbent, baseline=LOCAL, local=Arm(value=value, requests=50))


FRESH = Cell(incumbent=REMOTE, baseline=REMOTE)


def test_clusters_are_known_again_in_whatever_order_they_come() -> None:
    assert match(clustering(0.0, 5.0, 9.0), clustering(9.1, 0.2, 4.9)) == {0: 2, 1: 0, 2: 1}


def test_each_old_cluster_is_taken_once_and_the_whole_is_closest() -> None:
    # Alone, both new ones would be nearest to the old one at 1.
    assert match(clustering(0.4, 1.0), clustering(0.9, 1.2)) == {0: 0, 1: 1}


def test_a_cluster_far_from_all_old_ones_is_a_new_one() -> None:
    assert match(clustering(0.0, 5.0), clustering(0.1, 5.0, 20.0)) == {0: 0, 1: 1}
    assert match(clustering(0.0), clustering(3.0)) == {}


def test_centres_are_compared_in_tokens_and_not_in_each_fits_own_scale() -> None:
    moved = Scaler(mean=(10.0, 0.0, 0.0, 0.0), std=(2.0, 1.0, 1.0, 1.0))
    old = clustering(8.0, 12.0)
    assert match(old, clustering(1.0, -1.0, scaler=moved)) == {0: 1, 1: 0}


def test_a_column_that_says_nothing_keeps_no_clusters_apart() -> None:
    silent = Scaler(mean=(0.0, 7.0, 7.0, 0.0), std=(1.0, 1e9, 1e9, 1.0))
    assert match(clustering(0.0, 5.0), clustering(0.0, 5.0, scaler=silent)) == {0: 0, 1: 1}


def test_what_is_known_goes_with_its_cluster() -> None:
    table = carried_over([cell(0.1), cell(0.9)], [FRESH] * 3, {0: 1, 2: 0}, per_cluster=1)
    assert [each.local.value for each in table] == [0.9, 0.0, 0.1]
    assert [each.incumbent for each in table] == [LOCAL, REMOTE, LOCAL]


def test_all_regimes_of_a_cluster_go_with_it() -> None:
    old = [cell(0.1), cell(0.2), cell(0.3), cell(0.4)]
    table = carried_over(old, [FRESH] * 4, {0: 1}, per_cluster=2)
    assert [each.local.value for each in table] == [0.3, 0.4, 0.0, 0.0]
