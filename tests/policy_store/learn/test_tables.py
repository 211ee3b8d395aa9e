from dataclasses import replace
from random import Random

import pytest

from gateway.core.path.regime import RegimePolicy, Regimes
from gateway.core.path.rules import AlwaysRemote
from gateway.core.path.table import Guards, KMeans, Scaler, TablePolicy
from gateway.core.types import Features, Path, Reason
from policy_store.learn.clusters import Clustering
from policy_store.learn.tables import Table, first_cells, shares
from tests.core.factories import question, view
from tests.policy_store.learn.learn_lab import row

LOCAL, REMOTE = Path.LOCAL, Path.REMOTE
PLAIN = Table(
    clustering=Clustering(
        scaler=Scaler(mean=(0.0,) * 4, std=(1.0, 1e9, 1e9, 1e9)),
        model=KMeans(centroids=((2.0, 0.0, 0.0, 0.0), (8.0, 0.0, 0.0, 0.0))),
        shares=(0.5, 0.5),
        fit=-1.0,
    ),
    regimes=None,
    baseline=AlwaysRemote(),
    guards=Guards(max_local_tokens=9000),
)
LOADED = replace(PLAIN, regimes=Regimes(prefill_backlog_tokens=(100.0,), decode_requests=(4.0,)))


def request(isl: int) -> Features:
    return Features(isl_tokens=isl, prefill_isl_tokens=isl, decode_isl_tokens=isl, osl_tokens=10.0)


@pytest.mark.parametrize("isl", [5, 3000])
@pytest.mark.parametrize("backlog", [100, 101])
@pytest.mark.parametrize("batch", [4, 5])
def test_a_row_is_looked_up_where_the_policy_would_look(isl: int, backlog: int, batch: int) -> None:
    asked = question(isl, prefill=view("p0", prefill_tokens=backlog), decode=view("d0", inflight_requests=batch))
    served = row(features=asked.features, backlog=backlog, batch=batch, reason=Reason.ALWAYS_REMOTE, cell=None)
    for table in (PLAIN, LOADED):
        policy = table.policy((LOCAL,) * len(table))
        assert table.look_up(served) == policy.choose(asked, Random(0)).cluster


def test_a_table_makes_the_policy_of_its_kind() -> None:
    plain = PLAIN.policy((LOCAL, REMOTE), (0.1, 0.0))
    loaded = LOADED.policy((LOCAL,) * 4 + (REMOTE,) * 4, (0.1,) * 8)
    assert isinstance(plain, TablePolicy)
    assert isinstance(loaded, RegimePolicy)
    assert (len(PLAIN), len(LOADED)) == (2, 8)
    assert (plain.epsilon, plain.max_local_tokens) == ((0.1, 0.0), 9000)
    assert loaded.actions == ((LOCAL,) * 4, (REMOTE,) * 4)
    assert (loaded.epsilon, loaded.max_local_tokens) == (((0.1,) * 4,) * 2, 9000)


def test_what_a_guard_would_decide_belongs_to_no_cell() -> None:
    assert PLAIN.look_up(row(features=request(9001))) is None
    assert LOADED.look_up(row(features=request(9001))) is None


def test_without_loads_only_a_plain_table_knows_the_cell() -> None:
    blind = row(features=request(5), backlog=None, batch=None)
    assert PLAIN.look_up(blind) == 0
    assert LOADED.look_up(blind) is None


def test_cells_begin_with_what_the_baseline_mostly_did() -> None:
    rows = [row(features=request(5), path=path) for path in (LOCAL, LOCAL, REMOTE)]
    rows += [row(features=request(3000), path=path) for path in (LOCAL, REMOTE)]
    cells = first_cells(PLAIN, rows)
    assert [(cell.incumbent, cell.baseline) for cell in cells] == [(LOCAL, LOCAL), (REMOTE, REMOTE)]
    assert shares(PLAIN, [*rows, row(features=request(9001))]) == (0.5, pytest.approx(1 / 3))
