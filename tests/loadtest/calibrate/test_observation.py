import pytest

from gateway.core.step_cost import StepWork
from loadtest.calibrate.observation import (
    decode_observation,
    median_observation,
    prefill_observation,
    prefill_steps,
)
from loadtest.calibrate.plan import Kind, Probe
from loadtest.calibrate.target import Heard


def stream(first_s: float, step_s: float, tokens: int, *, prompt: int = 100) -> Heard:
    times = tuple(first_s + place * step_s for place in range(tokens))
    return Heard(sent_s=0.0, token_s=times, prompt_tokens=prompt, cached_tokens=0)


def test_a_prompt_is_cut_into_the_steps_that_its_budget_allows() -> None:
    assert prefill_steps(2500, 64, 1000) == (
        StepWork(prefill=((1000, 64),)),
        StepWork(prefill=((1000, 1064),)),
        StepWork(prefill=((500, 2064),)),
    )


def test_a_prompt_with_one_token_left_decodes_at_once() -> None:
    assert prefill_steps(1, 512, 1000) == (StepWork(decode_sequences=1, decode_context_tokens=513),)


@pytest.mark.parametrize(("told", "cached"), [(480, 480), (None, 512)])
def test_untold_cached_tokens_are_whole_blocks_of_the_prefix(told: int | None, cached: int) -> None:
    heard = Heard(sent_s=1.0, token_s=(1.5,), prompt_tokens=600, cached_tokens=told)
    probe = Probe(kind=Kind.PREFILL, size=80, context_tokens=520)
    seen = prefill_observation(probe, heard, block_tokens=32, budget_tokens=8192)
    assert seen.steps == (StepWork(prefill=((600 - cached, cached),)),)
    assert (seen.seconds, seen.intakes, seen.intake_tokens) == (0.5, 1, 600)


def test_only_the_time_counts_in_which_all_streams_decode() -> None:
    early, late = stream(0.0, 0.1, 20), stream(1.0, 0.2, 20)
    slow_from_1s = (*early.token_s[:10], *(1.0 + 0.2 * place for place in range(30)))
    seen = decode_observation([Heard(sent_s=0, token_s=slow_from_1s, prompt_tokens=50, cached_tokens=0), late])
    assert seen is not None
    assert seen.seconds == pytest.approx(0.2)
    assert seen.steps[0].decode_sequences == 2
    # Late tokens 3 to 19 but for the first of them, early ones ten further on.
    assert seen.steps[0].decode_context_tokens == pytest.approx(150 + 11.5 + 21.5, abs=2)


def test_reads_that_bring_several_tokens_do_not_change_the_step() -> None:
    even = stream(0.0, 0.1, 41)
    pairs = tuple(even.token_s[min(40, place + place % 2)] for place in range(41))
    seen = decode_observation([Heard(sent_s=0, token_s=pairs, prompt_tokens=9, cached_tokens=0)])
    assert seen is not None
    assert seen.seconds == pytest.approx(0.1)


def test_bursts_whose_tokens_are_read_one_by_one_do_not_hide_the_step() -> None:
    bursts = tuple(0.7 * (place // 7) + 1e-5 * (place % 7) for place in range(43))
    seen = decode_observation([Heard(sent_s=0, token_s=bursts, prompt_tokens=9, cached_tokens=0)])
    assert seen is not None
    assert seen.seconds == pytest.approx(0.1, rel=0.01)


def test_an_answer_that_comes_all_at_once_after_its_first_token_tells_the_mean() -> None:
    burst = (1.0, *(5.0 + 1e-6 * place for place in range(40)))
    seen = decode_observation([Heard(sent_s=0, token_s=burst, prompt_tokens=9, cached_tokens=0)])
    assert seen is not None
    assert seen.seconds == pytest.approx(0.1, rel=0.01)


def test_where_most_tokens_come_together_the_mean_is_the_step() -> None:
    sevens = tuple(0.7 * (place // 7) for place in range(43))
    seen = decode_observation([Heard(sent_s=0, token_s=sevens, prompt_tokens=9, cached_tokens=0)])
    assert seen is not None
    assert seen.seconds == pytest.approx(0.1, rel=0.15)


def test_a_pause_does_not_change_the_step() -> None:
    paused = tuple(0.1 * place + (5.0 if place > 20 else 0.0) for place in range(41))
    seen = decode_observation([Heard(sent_s=0, token_s=paused, prompt_tokens=9, cached_tokens=0)])
    assert seen is not None
    assert seen.seconds == pytest.approx(0.1)


def test_streams_that_hardly_decode_together_tell_nothing() -> None:
    assert decode_observation([stream(0.0, 0.1, 20), stream(1.8, 0.1, 20)]) is None


def test_the_median_repeat_keeps_its_own_work() -> None:
    repeats = [
        prefill_observation(
            Probe(kind=Kind.PREFILL, size=64),
            Heard(sent_s=0.0, token_s=(seconds,), prompt_tokens=tokens, cached_tokens=0),
            block_tokens=16,
            budget_tokens=8192,
        )
        for seconds, tokens in ((3.0, 66), (1.0, 64), (2.0, 65))
    ]
    assert median_observation(repeats).intake_tokens == 65
