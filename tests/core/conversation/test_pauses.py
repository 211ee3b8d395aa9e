import math

import pytest

from gateway.core.conversation.pauses import BOUNDS_S, LEAST_PAUSES, MEMORY_PAUSES, Pauses


def seen(*pauses_s: float) -> Pauses:
    pauses = Pauses()
    for pause_s in pauses_s:
        pauses.saw(pause_s)
    return pauses


def test_too_few_say_nothing() -> None:
    assert seen(*[1.0] * (LEAST_PAUSES - 1)).usual_s() == math.inf
    assert seen(*[1.0] * LEAST_PAUSES).usual_s() == 1.0


def test_nineteen_of_twenty_do_not_exceed_it() -> None:
    found = seen(*[1.0] * 95, *[100.0] * 5).usual_s()
    assert 1.0 <= found < 1.2
    assert 100.0 <= seen(*[1.0] * 90, *[100.0] * 10).usual_s() < 119.0


def test_a_pause_that_is_off_the_scale_is_without_end() -> None:
    assert seen(*[2 * BOUNDS_S[-1]] * LEAST_PAUSES).usual_s() == math.inf


def test_old_pauses_fade() -> None:
    pauses = seen(*[100.0] * MEMORY_PAUSES, *[1.0] * 8 * MEMORY_PAUSES)
    assert pauses.usual_s() == pytest.approx(1.0)
