from dataclasses import replace

import pytest

from gateway.core.engine_costs import MOST_CHUNKS, EnginePower
from tests.core.factories import ENGINE


def test_a_prompt_within_the_budget_takes_one_step() -> None:
    assert ENGINE.prefill_s(1000, 0) == pytest.approx(0.01 + 0.1)


def test_a_longer_prompt_takes_a_step_per_budget() -> None:
    assert ENGINE.prefill_s(5000, 0) == pytest.approx(3 * 0.01 + 0.5 + (2000 + 4000) * 1e-7)


def test_decodes_take_their_place_in_the_budget_and_their_context_is_read_in_every_step() -> None:
    # 1000 sequences leave room for 1000 tokens of the prompt, so there are two steps.
    seconds = ENGINE.prefill_s(2000, 0, decodes=1000, context_tokens=10_000)
    assert seconds == pytest.approx(2 * (0.01 + 0.2) + (1000 + 10_000 + 11_000) * 1e-7)


def test_a_prompt_that_no_engine_takes_is_priced_in_bounded_work() -> None:
    long = MOST_CHUNKS * ENGINE.max_batched_tokens
    assert ENGINE.prefill_s(10**15, 0) == pytest.approx(ENGINE.prefill_s(long, 0) * 10**15 / long)


def test_nothing_decodes_in_no_time_and_nothing_is_moved_in_none() -> None:
    assert ENGINE.decode_step_s(0, 0) == 0.0
    assert ENGINE.transfer_s(0) == 0.0
    assert ENGINE.transfer_s(1000) == pytest.approx(0.02)


POWER = EnginePower(idle_w=100.0, decode_w=400.0, prefill_w=700.0)


def test_a_prefill_beside_decoding_takes_what_it_adds_and_alone_the_weights_too() -> None:
    engine = replace(ENGINE, power=POWER)
    assert engine.prefill_j(0.05, 0.02) == pytest.approx(0.03 * 600.0)
    alone_s = ENGINE.decode_step_s(1, 1)
    assert engine.prefill_j(0.05, 0.0) == pytest.approx(alone_s * 300.0 + (0.05 - alone_s) * 600.0)


def test_a_prefill_that_adds_nothing_takes_nothing_and_without_power_nothing_is_known() -> None:
    assert replace(ENGINE, power=POWER).prefill_j(0.01, 0.02) == 0.0
    assert ENGINE.prefill_j(0.05, 0.0) == 0.0


def test_power_that_does_not_rise_is_refused() -> None:
    with pytest.raises(ValueError, match="rise from idle"):
        EnginePower(idle_w=100.0, decode_w=90.0, prefill_w=700.0)
