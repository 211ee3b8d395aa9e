"""Which call gets which fault, and where an answer is cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.worker.cuts import Cut, HangUp
from loadtest.worker.faults import Fault, FaultKind, FaultRoute, FaultSwitches, Leg
from loadtest.worker.filler import answer_key
from loadtest.worker.generation import Delta, Plan
from loadtest.worker.requests import Prompt


def plan() -> Plan:
    return Plan(
        index=0,
        engine_id="e",
        prompt=Prompt(data=b"hi"),
        block_hashes=(),
        output_tokens=100,
        worded_tokens=100,
        finish_reason="length",
        key=answer_key("k"),
        holds_kv=False,
    )


def test_a_count_is_used_up_call_by_call() -> None:
    switches = FaultSwitches([Fault(kind=FaultKind.HANG, count=2)])
    taken = [switches.take(Leg.PLAIN, stream=False) for _ in range(3)]
    assert [fault is not None for fault in taken] == [True, True, False]
    assert not switches.may_fire()
    assert [(each["left"], each["fired"]) for each in switches.report()] == [(0, 2)]


def test_a_fault_of_a_kind_replaces_the_one_before() -> None:
    switches = FaultSwitches()
    switches.turn_on(Fault(kind=FaultKind.STATUS, status=500))
    switches.turn_on(Fault(kind=FaultKind.STATUS, status=503))
    fault = switches.take(Leg.PLAIN, stream=False)
    assert fault is not None
    assert fault.status == 503


def test_the_first_fault_that_concerns_a_call_is_the_one_it_gets() -> None:
    switches = FaultSwitches(
        [Fault(kind=FaultKind.HANG, route=FaultRoute.DECODE), Fault(kind=FaultKind.GARBAGE, count=1)]
    )
    kinds = [
        fault and fault.kind
        for leg in (Leg.PLAIN, Leg.DECODE, Leg.PLAIN)
        for fault in [switches.take(leg, stream=False)]
    ]
    assert kinds == [FaultKind.GARBAGE, FaultKind.HANG, None]


@pytest.mark.parametrize("kind", [FaultKind.NO_KV_PARAMS, FaultKind.DIE_BETWEEN_LEGS])
def test_what_concerns_handing_over_is_for_prefill_legs_alone(kind: FaultKind) -> None:
    concerned = {leg for leg in Leg if Fault(kind=kind).concerns(leg, stream=False)}
    assert concerned == {Leg.PREFILL}


@pytest.mark.parametrize(("kind", "stream"), [(FaultKind.WRONG_JSON, False), (FaultKind.ERROR_EVENT, True)])
def test_some_faults_need_a_stream_and_some_cannot_have_one(kind: FaultKind, stream: bool) -> None:
    fault = Fault(kind=kind)
    assert fault.concerns(Leg.PLAIN, stream=stream)
    assert not fault.concerns(Leg.PLAIN, stream=not stream)


def test_any_route_is_every_call_for_work_and_no_probe() -> None:
    assert {leg for leg in Leg if Fault(kind=FaultKind.HANG).concerns(leg, stream=False)} == set(Leg) - {Leg.PROBE}


@given(counts=st.lists(st.integers(1, 5), max_size=8), after=st.integers(0, 20))
def test_a_cut_lets_exactly_so_many_tokens_pass(counts: list[int], after: int) -> None:
    cut, passed, first, due = Cut(after, HangUp()), 0, 0, False
    for count in counts:
        kept = cut.take([Delta(plan(), first, count, ended=False)])
        assert all(delta.first == first for delta in kept)
        passed += sum(delta.count for delta in kept)
        first += count
        try:
            cut.raise_if_due()
        except HangUp:
            due = True
    assert passed == min(after, sum(counts))
    assert due == (bool(counts) and sum(counts) >= after)


def test_a_sequence_that_is_cut_has_not_ended() -> None:
    (kept,) = Cut(2, HangUp()).take([Delta(plan(), 0, 3, ended=True)])
    assert (kept.count, kept.ended) == (2, False)
    (whole,) = Cut(3, HangUp()).take([Delta(plan(), 0, 3, ended=True)])
    assert whole.ended
