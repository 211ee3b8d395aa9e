from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from loadtest.traces.loaders import load_trace
from loadtest.traces.synthetic import HEAD_BLOCK, SyntheticMix, synthetic_trace, uniform_mix
from loadtest.traces.types import TraceRequest

MOONCAKE = Path(__file__).parents[4] / "shared" / "data" / "traces" / "mooncake_conversation_trace.jsonl.gz"


@dataclass(frozen=True)
class Statistics:
    isl: tuple[float, ...]
    """P50, P90, P99 and mean."""
    osl: tuple[float, ...]
    rate_rps: float
    continued_ratio: float
    """Share of requests that share more than the head with an earlier one."""
    reuse_ratio: float
    """Share of blocks that an endless cache holds when they are asked for."""


def statistics(requests: Sequence[TraceRequest]) -> Statistics:
    seen: set[int] = set()
    hits = blocks = continued = 0
    for request in requests:
        known = next((n for n, block in enumerate(request.hash_ids) if block not in seen), len(request.hash_ids))
        hits, blocks = hits + known, blocks + len(request.hash_ids)
        continued += known > 1
        seen.update(request.hash_ids)
    return Statistics(
        isl=_shape([request.input_tokens for request in requests]),
        osl=_shape([request.output_tokens for request in requests]),
        rate_rps=len(requests) / requests[-1].arrival_s,
        continued_ratio=continued / len(requests),
        reuse_ratio=hits / blocks,
    )


def _shape(lengths: Sequence[int]) -> tuple[float, ...]:
    return (*np.percentile(lengths, (50, 90, 99)).tolist(), float(np.mean(lengths)))


@pytest.fixture(scope="module")
def trace() -> list[TraceRequest]:
    return synthetic_trace(SyntheticMix(), 20_000, seed=11)


def test_statistics_are_those_of_the_mooncake_conversation_trace(trace: list[TraceRequest]) -> None:
    found = statistics(trace)
    assert found.rate_rps == pytest.approx(3.40)
    assert found.isl[:2] == pytest.approx((6_909, 27_367), rel=0.08)
    assert found.isl[2:] == pytest.approx((85_401, 12_035), rel=0.10)
    assert found.osl[:3] == pytest.approx((350, 597, 1_120), rel=0.05)
    assert found.osl[3] == pytest.approx(343, rel=0.03)
    assert found.continued_ratio == pytest.approx(0.387, abs=0.025)
    assert found.reuse_ratio == pytest.approx(0.366, abs=0.025)


@pytest.mark.shared_data
@pytest.mark.skipif(not MOONCAKE.exists(), reason=f"{MOONCAKE.name} is not here")
def test_statistics_match_the_real_file_at_its_own_length() -> None:
    real = statistics(load_trace(f"mooncake:{MOONCAKE}"))
    made = statistics(load_trace("synthetic:mooncake", seed=5))
    assert made.isl == pytest.approx(real.isl, rel=0.10)
    assert made.osl == pytest.approx(real.osl, rel=0.06)
    assert made.rate_rps == pytest.approx(real.rate_rps, rel=0.01)
    assert made.continued_ratio == pytest.approx(real.continued_ratio, abs=0.03)
    assert made.reuse_ratio == pytest.approx(real.reuse_ratio, abs=0.03)


def test_every_prompt_begins_with_the_shared_head(trace: list[TraceRequest]) -> None:
    assert {request.hash_ids[0] for request in trace} == {HEAD_BLOCK}


def test_ids_cover_the_prompt_and_never_repeat_in_it(trace: list[TraceRequest]) -> None:
    for request in trace:
        assert len(request.hash_ids) == -(-request.input_tokens // request.block_tokens)
        assert len(set(request.hash_ids)) == len(request.hash_ids)


def test_a_block_always_follows_the_same_block(trace: list[TraceRequest]) -> None:
    before: dict[int, int] = {}
    for request in trace:
        for parent, block in zip(request.hash_ids, request.hash_ids[1:], strict=False):
            assert before.setdefault(block, parent) == parent


def test_only_turns_of_one_conversation_share_more_than_the_head(trace: list[TraceRequest]) -> None:
    owner: dict[int, str | None] = {}
    for request in trace:
        for block in request.hash_ids[1:]:
            assert owner.setdefault(block, request.session) == request.session


def test_most_turns_append_to_the_whole_history(trace: list[TraceRequest]) -> None:
    last: dict[str | None, TraceRequest] = {}
    appended = turns = 0
    for request in trace:
        if previous := last.get(request.session):
            whole = previous.input_tokens // previous.block_tokens
            turns += 1
            appended += request.hash_ids[:whole] == previous.hash_ids[:whole]
            assert request.arrival_s > previous.arrival_s
        last[request.session] = request
    assert 0.75 < appended / turns < 0.95


def test_only_whole_blocks_are_shared(trace: list[TraceRequest]) -> None:
    last: dict[str | None, TraceRequest] = {}
    for request in trace:
        if previous := last.get(request.session):
            shared = len(set(request.hash_ids) & set(previous.hash_ids) - {HEAD_BLOCK})
            assert (shared + 1) * request.block_tokens <= previous.input_tokens
        last[request.session] = request


def test_arrivals_ascend_and_indices_count(trace: list[TraceRequest]) -> None:
    arrivals_s = [request.arrival_s for request in trace]
    assert arrivals_s == sorted(arrivals_s)
    assert [request.index for request in trace] == list(range(20_000))


def test_the_seed_decides_everything() -> None:
    mix = SyntheticMix()
    assert synthetic_trace(mix, 50, seed=1) == synthetic_trace(mix, 50, seed=1)
    assert synthetic_trace(mix, 50, seed=1) != synthetic_trace(mix, 50, seed=2)


@pytest.mark.parametrize("rate_rps", [0.5, 40.0])
def test_the_mean_rate_is_met_exactly(rate_rps: float) -> None:
    requests = synthetic_trace(SyntheticMix(rate_rps=rate_rps), 300, seed=1)
    assert 300 / requests[-1].arrival_s == pytest.approx(rate_rps)


def test_lengths_scale() -> None:
    whole = statistics(synthetic_trace(SyntheticMix(), 3_000, seed=1))
    small = statistics(synthetic_trace(SyntheticMix(isl_scale=0.25, osl_scale=0.5), 3_000, seed=1))
    assert small.isl == pytest.approx([0.25 * length for length in whole.isl], rel=0.15)
    assert small.osl == pytest.approx([0.5 * length for length in whole.osl], rel=0.05)


def test_no_prompt_exceeds_the_models_context() -> None:
    requests = synthetic_trace(SyntheticMix(max_input_tokens=8_000), 2_000, seed=1)
    assert max(request.input_tokens for request in requests) <= 8_000


def test_shorter_gaps_bring_continuations_into_a_short_run() -> None:
    slow = statistics(synthetic_trace(SyntheticMix(), 600, seed=1))
    quick = statistics(synthetic_trace(SyntheticMix(gap_scale=0.1), 600, seed=1))
    assert quick.continued_ratio > slow.continued_ratio + 0.1


def test_an_empty_trace_is_empty() -> None:
    assert synthetic_trace(SyntheticMix(), 0, seed=1) == []


def test_a_uniform_mix_has_the_sizes_and_rate_asked_for() -> None:
    requests = uniform_mix(5_000, isl_tokens=4_000, osl_tokens=250, rate_rps=8.0, seed=3)
    lengths = np.array([request.input_tokens for request in requests])
    gaps_s = np.diff([request.arrival_s for request in requests])
    assert np.median(lengths) == pytest.approx(4_000, rel=0.02)
    assert np.std(np.log(lengths)) == pytest.approx(0.15, rel=0.05)
    assert {request.output_tokens for request in requests} == {250}
    assert np.mean(gaps_s) == pytest.approx(1 / 8, rel=0.05)
    assert np.std(gaps_s) / np.mean(gaps_s) == pytest.approx(1.0, abs=0.05)
    assert all(request.hash_ids == () for request in requests)
