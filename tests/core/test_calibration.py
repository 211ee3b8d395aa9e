import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.calibration import MAX_OUTPUT_TOKENS, Calibration
from gateway.core.features import estimate
from tests.core.factories import MODEL, facts


def test_an_unknown_model_has_the_prior() -> None:
    calibration = Calibration()
    assert calibration.bytes_per_token(MODEL) == 4.0
    assert calibration.osl_tokens(MODEL) == 256.0
    assert calibration.models() == {}


def test_bytes_per_token_converges_to_what_the_worker_counts() -> None:
    calibration = Calibration()
    for _ in range(50):
        calibration.saw_prompt(MODEL, prompt_bytes=6_000, input_tokens=2_000)
    assert calibration.bytes_per_token(MODEL) == pytest.approx(3.0, abs=0.05)
    assert calibration.models() == {MODEL: calibration.bytes_per_token(MODEL)}


def test_one_prompt_weighs_against_the_prior_by_its_tokens() -> None:
    calibration = Calibration(decay=1.0)
    calibration.saw_prompt(MODEL, prompt_bytes=4_000, input_tokens=2_000)
    # 2000 tokens at 2 bytes against a prior of 2000 tokens at 4.
    assert calibration.bytes_per_token(MODEL) == 3.0


def test_old_prompts_fade() -> None:
    calibration = Calibration()
    for _ in range(2_000):
        calibration.saw_prompt(MODEL, prompt_bytes=8_000, input_tokens=1_000)
    for _ in range(1_000):
        calibration.saw_prompt(MODEL, prompt_bytes=2_000, input_tokens=1_000)
    assert calibration.bytes_per_token(MODEL) == pytest.approx(2.0, abs=0.05)


def test_output_length_is_a_rolling_mean() -> None:
    calibration = Calibration()
    for _ in range(1_000):
        calibration.saw_output(MODEL, 40, None)
        calibration.saw_output(MODEL, 60, None)
    assert calibration.osl_tokens(MODEL) == pytest.approx(50.0, abs=1.0)


def test_one_output_weighs_against_the_prior_as_one_of_eleven() -> None:
    calibration = Calibration(decay=1.0)
    calibration.saw_output(MODEL, 36, None)
    assert calibration.osl_tokens(MODEL) == (10 * 256 + 36) / 11


def test_the_mean_length_is_of_all_models_and_only_of_counts_that_are_believed() -> None:
    calibration = Calibration(decay=1.0)
    assert calibration.mean_osl_tokens == 256.0
    calibration.saw_output("a", 36, None)
    calibration.saw_output("b", 12, None)
    calibration.saw_output("b", 5000, 100)
    assert calibration.mean_osl_tokens == (10 * 256 + 36 + 12) / 12


def test_models_do_not_mix() -> None:
    calibration = Calibration()
    calibration.saw_prompt("a", 8_000, 1_000)
    calibration.saw_output("a", 1, None)
    assert (calibration.bytes_per_token("b"), calibration.osl_tokens("b")) == (4.0, 256.0)


@pytest.mark.parametrize(
    ("prompt_bytes", "input_tokens"),
    [(4_000, 0), (4_000, -1), (4_000, 8_001), (4_000, 124), (0, 10), (4_000, 2**63 - 1), (4_000, 10**400)],
)
def test_a_token_count_that_no_text_has_is_dropped(prompt_bytes: int, input_tokens: int) -> None:
    calibration = Calibration()
    calibration.saw_prompt(MODEL, prompt_bytes, input_tokens)
    assert (calibration.bytes_per_token(MODEL), calibration.rejected) == (4.0, 1)


@pytest.mark.parametrize(
    ("output_tokens", "limit"),
    [(-1, None), (101, 100), (MAX_OUTPUT_TOKENS + 1, None), (2**63 - 1, 2**63 - 1), (10**400, None)],
)
def test_an_output_that_no_engine_makes_is_dropped(output_tokens: int, limit: int | None) -> None:
    calibration = Calibration()
    calibration.saw_output(MODEL, output_tokens, limit)
    assert (calibration.osl_tokens(MODEL), calibration.rejected) == (256.0, 1)


def test_bounds_themselves_are_believed() -> None:
    calibration = Calibration()
    calibration.saw_prompt(MODEL, 4_000, 8_000)
    calibration.saw_prompt(MODEL, 4_000, 125)
    calibration.saw_prompt(MODEL, 4, 1)
    calibration.saw_output(MODEL, 100, 100)
    calibration.saw_output(MODEL, 0, None)
    calibration.saw_output(MODEL, MAX_OUTPUT_TOKENS, None)
    assert calibration.rejected == 0


@given(st.lists(st.tuples(st.integers(0, 2**40), st.integers(-10, 2**70)), max_size=30))
def test_no_worker_can_bend_the_ratio_out_of_its_bounds(reports: list[tuple[int, int]]) -> None:
    calibration = Calibration()
    for size, tokens in reports:
        calibration.saw_prompt(MODEL, size, tokens)
        calibration.saw_output(MODEL, tokens, None)
    assert 0.5 <= calibration.bytes_per_token(MODEL) <= 32.0
    assert 0.0 <= calibration.osl_tokens(MODEL) <= MAX_OUTPUT_TOKENS


class TestEstimate:
    def test_text_is_counted_in_bytes_and_rounded_up(self) -> None:
        about = estimate(facts(prompt_bytes=1001), Calibration())
        assert (about.isl_tokens, about.tokens_per_block, about.osl_tokens) == (251, 64.0, 256.0)

    def test_token_ids_are_exact_whatever_the_ratio_is(self) -> None:
        about = estimate(facts(tokens=1000, block_bytes=128), Calibration(prior_bytes_per_token=2.0))
        assert (about.isl_tokens, about.tokens_per_block) == (1000, 32.0)

    def test_a_hit_is_counted_in_whole_tokens(self) -> None:
        about = estimate(facts(prompt_bytes=10_000), Calibration(prior_bytes_per_token=3.0))
        assert [about.hit_tokens(blocks) for blocks in (0, 1, 3)] == [0, 85, 256]

    def test_an_empty_prompt_has_no_tokens(self) -> None:
        assert estimate(facts(), Calibration()).isl_tokens == 0

    @pytest.mark.parametrize(("limit", "osl"), [(None, 256.0), (255, 255.0), (256, 256.0), (257, 256.0)])
    def test_the_output_guess_is_capped_by_the_request(self, limit: int | None, osl: float) -> None:
        assert estimate(facts(max_output_tokens=limit), Calibration()).osl_tokens == osl

    @given(st.integers(0, 10**7), st.integers(0, 10**6))
    def test_a_hit_is_never_longer_than_the_prompt(self, prompt_bytes: int, blocks: int) -> None:
        about = estimate(facts(prompt_bytes=prompt_bytes), Calibration())
        assert 0 <= about.hit_tokens(blocks) <= about.isl_tokens
        assert about.isl_tokens == math.ceil(prompt_bytes / 4)
