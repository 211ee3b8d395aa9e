from dataclasses import replace

import pytest

from loadtest.engine.engine import Engine
from loadtest.validate.silicon_loop import REQUEST_S, RETURN_S, TOKEN_S, run_closed_loop
from tests.loadtest.engine.engine_lab import SPEC, SteadyCosts

STEP_S = 1.0
INTAKE_S = REQUEST_S + 8 * TOKEN_S


def engine(total_blocks: int = SPEC.total_blocks) -> Engine:
    return Engine(replace(SPEC, total_blocks=total_blocks), SteadyCosts(STEP_S), tells_every_token=False)


def test_one_client_waits_for_front_end_step_and_return() -> None:
    result = run_closed_loop(engine(), [(8, 5)] * 3, 1)
    assert result.ttft_s == pytest.approx(INTAKE_S + STEP_S + RETURN_S)
    assert result.tpot_s == pytest.approx(STEP_S)


def test_who_comes_with_others_waits_for_the_front_end_and_misses_the_step_that_has_begun() -> None:
    result = run_closed_loop(engine(), [(8, 5)] * 2, 2)
    first_s, second_s = INTAKE_S + STEP_S, INTAKE_S + 2 * STEP_S
    assert result.ttft_s == pytest.approx((first_s + second_s) / 2 + RETURN_S)


def test_a_front_end_that_takes_all_at_once_lets_them_share_the_step() -> None:
    result = run_closed_loop(engine(), [(8, 5)] * 2, 2, front_end_is_serial=False)
    assert result.ttft_s == pytest.approx(INTAKE_S + STEP_S + RETURN_S)


def test_no_more_requests_are_under_way_than_there_are_clients() -> None:
    one = engine()
    run_closed_loop(one, [(8, 2)] * 6, 2, front_end_is_serial=False)
    counts = one.snapshot()
    assert counts.finished == 6
    assert counts.steps == 3 * 2


def test_a_request_that_can_never_fit_is_an_error() -> None:
    with pytest.raises(ValueError, match="does not fit"):
        run_closed_loop(engine(total_blocks=2), [(8, 5)], 1)
