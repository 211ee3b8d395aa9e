from collections.abc import Callable
from random import Random

import pytest

from gateway.core.types import Path, Reason
from policy_store.learn.environment import ServedRow
from policy_store.learn.regimes import RegimeMethod, RegimePlan, fit_regimes
from tests.policy_store.learn.learn_lab import row

LOCAL, REMOTE = Path.LOCAL, Path.REMOTE


def rows(chance: Callable[[int, int, Path], float], count: int = 4000, *, propensity: float = 1.0) -> list[ServedRow]:
    """Requests with a backlog up to 30,000 tokens and a batch up to 40, that go either way at random."""
    rng = Random(4)
    made = []
    for order in range(count):
        backlog, batch = rng.randrange(30_000), rng.randrange(40)
        path = rng.choice((LOCAL, REMOTE))
        made.append(
            row(
                order,
                backlog=backlog,
                batch=batch,
                path=path,
                reason=Reason.CLUSTER if propensity < 1.0 else Reason.LONG_EFFECTIVE_ISL,
                propensity=propensity,
                attained=rng.random() < chance(backlog, batch, path),
            )
        )
    return made


def queue_breaks_remote(backlog: int, batch: int, path: Path) -> float:
    """Remote fails above 12,000 tokens, and everything suffers in large batches."""
    return (0.9 if path is LOCAL or backlog <= 12_000 else 0.1) - (0.5 if batch > 25 else 0.0)


def test_a_threshold_lies_where_remote_requests_begin_to_miss() -> None:
    found = fit_regimes(rows(queue_breaks_remote), RegimePlan(backlog_levels=2))
    assert found.prefill_backlog_tokens == (pytest.approx(12_000, abs=600),)
    assert found.decode_requests == (pytest.approx(25, abs=1),)


def test_where_paths_were_drawn_their_advantage_is_split() -> None:
    """Everything misses above 20,000 tokens, which says nothing about paths; they differ above 8,000."""

    def chance(backlog: int, batch: int, path: Path) -> float:
        del batch
        return 0.05 if backlog > 20_000 else 0.9 if (path is LOCAL) == (backlog > 8_000) else 0.3

    plan = RegimePlan(backlog_levels=3, batch_levels=1)
    found = fit_regimes(rows(chance, propensity=0.5), plan)
    assert found.prefill_backlog_tokens[0] == pytest.approx(8_000, abs=500)
    assert found.decode_requests == ()


def test_quantiles_make_equal_shares() -> None:
    plan = RegimePlan(method=RegimeMethod.QUANTILES, backlog_levels=3, batch_levels=2)
    found = fit_regimes(rows(queue_breaks_remote), plan)
    assert found.prefill_backlog_tokens == (pytest.approx(10_000, abs=600), pytest.approx(20_000, abs=600))
    assert len(found) == 6


def test_quantiles_of_a_load_that_is_mostly_zero_leave_no_regime_empty() -> None:
    idle = [row(order, backlog=0 if order % 10 else order, batch=3) for order in range(500)]
    plan = RegimePlan(method=RegimeMethod.QUANTILES, backlog_levels=3, batch_levels=3)
    found = fit_regimes(idle, plan)
    assert found.prefill_backlog_tokens == (0.0,)
    assert found.decode_requests == ()


@pytest.mark.parametrize("method", RegimeMethod)
def test_a_load_that_nobody_knows_has_one_regime(method: RegimeMethod) -> None:
    blind = [row(order, backlog=None, batch=None) for order in range(100)]
    assert len(fit_regimes(blind, RegimePlan(method=method))) == 1


def test_no_regime_is_made_for_a_few_requests() -> None:
    few = [
        row(order, backlog=50_000 if order < 5 else 10, batch=1, path=REMOTE, attained=order >= 5)
        for order in range(200)
    ]
    assert len(fit_regimes(few, RegimePlan(min_share=0.1))) == 1
