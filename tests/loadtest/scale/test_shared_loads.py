"""Replicas that are told what the others have in flight."""

from dataclasses import replace

from gateway.core.events import WorkerLoad
from gateway.core.ledger import Ledger, Reservation
from gateway.core.types import WorkerId
from loadtest.scale.loads import BELIEVED_INTERVALS, LoadPlan, SharedLoads
from loadtest.scale.replicas import ReplicaPlan
from loadtest.scale.run import Arm, all_seeing, loads_shared
from tests.core.factories import decision, facts
from tests.loadtest.scale.test_scale import PLACE, figures, steady

D0, P0 = WorkerId("d0"), WorkerId("p0")
HURRIED = replace(PLACE, rate_rps=22.0)


def reserve(ledger: Ledger, name: str) -> None:
    of = decision(name, prefill="p0", isl=100)
    ledger.reserve(
        Reservation(decision=of, facts=facts(), at_s=0.0, kv_tokens=160, prefill_worker=P0, prefill_tokens=100)
    )


def test_each_hears_of_all_others_and_only_of_changes() -> None:
    of, ledgers = SharedLoads(LoadPlan(interval_s=0.1, way_s=0.05), 3), [Ledger() for _ in range(3)]
    for name, number in (("a", 0), ("b", 1), ("c", 1)):
        reserve(ledgers[number], name)
    assert of.exchange(0, ledgers[0], 1.0).loads == (WorkerLoad(D0), WorkerLoad(P0))
    of.exchange(1, ledgers[1], 1.0)
    first, again = of.exchange(2, ledgers[2], 1.0), of.exchange(2, ledgers[2], 1.1)
    assert {*first.loads} == {WorkerLoad(P0, 3, 300, 300), WorkerLoad(D0, 3, 0, 480, 3, 480)}
    assert (first.at_s, first.until_s) == (1.05, 1.05 + BELIEVED_INTERVALS * 0.1)
    assert again.loads == ()
    assert {*of.exchange(0, ledgers[0], 1.1).loads} == {WorkerLoad(P0, 2, 200, 200), WorkerLoad(D0, 2, 0, 320, 2, 320)}
    for name in ("b", "c"):
        ledgers[1].release(decision(name).decision_id)
    of.exchange(1, ledgers[1], 1.2)
    assert {*of.exchange(0, ledgers[0], 1.2).loads} == {WorkerLoad(P0), WorkerLoad(D0)}


def test_sharing_loads_brings_many_nearer_to_one() -> None:
    alone = Arm(name="alone", plan=ReplicaPlan(count=10))
    one, shared, blind = (figures(arm, HURRIED) for arm in (all_seeing(), loads_shared(10), alone))
    assert blind.ttft_p90_s > shared.ttft_p90_s > 0.9 * one.ttft_p90_s
    assert blind.attained_ratio < shared.attained_ratio
    assert steady(shared) == steady(figures(loads_shared(10), HURRIED))
