import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.backlog import CORRECTION_BOUND, Backlog
from gateway.core.types import DecisionId


def ids(*names: str) -> list[DecisionId]:
    return [DecisionId(name) for name in names]


A, B, C = ids("a", "b", "c")


def test_prefills_wait_for_those_that_were_sent_before() -> None:
    backlog = Backlog()
    backlog.add(A, 2.0, 10.0)
    backlog.add(B, 3.0, 10.0)
    assert backlog.seconds(10.0) == 5.0
    assert backlog.seconds(11.0) == 4.0


def test_a_late_prefill_holds_up_those_behind_it() -> None:
    backlog = Backlog()
    backlog.add(A, 2.0, 0.0)
    backlog.add(B, 3.0, 0.0)
    assert backlog.seconds(7.0) == 3.0


def test_what_is_left_is_counted_from_the_last_end() -> None:
    backlog = Backlog()
    backlog.add(A, 2.0, 0.0)
    backlog.add(B, 2.0, 0.0)
    backlog.ended(A, 2.0)
    assert backlog.seconds(3.0) == pytest.approx(1.0)
    backlog.ended(B, 4.0)
    assert backlog.seconds(4.0) == 0.0
    assert backlog.correction == pytest.approx(1.0)


def test_a_prefill_that_nobody_waits_for_any_more_takes_no_time() -> None:
    backlog = Backlog()
    backlog.add(A, 2.0, 0.0)
    backlog.add(B, 3.0, 0.0)
    backlog.drop(A, 1.0)
    assert backlog.seconds(1.0) == 3.0
    backlog.add(C, 1.0, 2.0)
    backlog.drop(C, 2.0)
    assert backlog.seconds(2.0) == 2.0
    assert backlog.correction == 1.0


def test_prefills_that_take_twice_as_long_are_predicted_to_after_a_while() -> None:
    backlog, now_s = Backlog(), 0.0
    for _ in range(500):
        backlog.add(A, 1.0, now_s)
        now_s += 2.0
        backlog.ended(A, now_s)
    assert backlog.correction == pytest.approx(2.0, rel=0.02)
    backlog.add(A, 1.0, now_s)
    assert backlog.seconds(now_s) == pytest.approx(2.0, rel=0.02)


def test_prompts_that_share_a_step_and_end_together_do_not_bend_the_correction() -> None:
    backlog, now_s = Backlog(), 0.0
    for _ in range(300):
        for one in (A, B, C):
            backlog.add(one, 1.0, now_s)
        now_s += 3.0
        for one in (A, B, C):
            backlog.ended(one, now_s)
    assert backlog.correction == pytest.approx(1.0, rel=0.05)


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 100)), max_size=50))
def test_a_backlog_is_never_negative_and_its_correction_bounded(times: list[tuple[float, float]]) -> None:
    backlog, now_s = Backlog(), 0.0
    for number, (predicted_s, passed_s) in enumerate(times):
        backlog.add(DecisionId(str(number)), predicted_s, now_s)
        now_s += passed_s
        assert backlog.seconds(now_s) >= -1e-6
        if number % 3 == 0:
            backlog.ended(DecisionId(str(number)), now_s)
        elif number % 3 == 1:
            backlog.drop(DecisionId(str(number - 1)), now_s)
        assert 1 / CORRECTION_BOUND <= backlog.correction <= CORRECTION_BOUND
