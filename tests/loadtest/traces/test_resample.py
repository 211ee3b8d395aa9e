import numpy as np
import pytest

from loadtest.traces.loaders import load_workload
from loadtest.traces.resample import resampled
from loadtest.traces.statistics import describe
from loadtest.traces.synthetic import HEAD_BLOCK, SyntheticMix, synthetic_trace
from loadtest.traces.types import TraceRequest
from loadtest.traces.workload import Workload


@pytest.fixture(scope="module")
def short() -> Workload:
    return Workload(requests=tuple(synthetic_trace(SyntheticMix(), 2_000, seed=1)))


def by_ids_alone(workload: Workload) -> Workload:
    bare = (
        TraceRequest(
            index=one.index,
            arrival_s=one.arrival_s,
            input_tokens=one.input_tokens,
            output_tokens=one.output_tokens,
            hash_ids=one.hash_ids,
        )
        for one in workload.requests
    )
    return Workload(requests=tuple(bare))


@pytest.mark.parametrize("strip", [False, True], ids=["by session", "by ids"])
def test_a_longer_draw_has_the_statistics_of_the_original(short: Workload, strip: bool) -> None:
    source = by_ids_alone(short) if strip else short
    made, real = describe(resampled(source, 3_000.0, seed=2).requests), describe(short.requests)
    assert made.rate_rps == pytest.approx(real.rate_rps, rel=0.1)
    assert made.isl_tokens.mean == pytest.approx(real.isl_tokens.mean, rel=0.1)
    assert made.reuse_ratio == pytest.approx(real.reuse_ratio, abs=0.03)
    assert made.gap_cv == pytest.approx(real.gap_cv, abs=0.05)


def test_conversations_share_only_what_was_common(short: Workload) -> None:
    found = resampled(short, 1_500.0, seed=2).requests
    owner: dict[int, str | None] = {}
    for request in found:
        assert request.hash_ids[0] == HEAD_BLOCK
        for block in request.hash_ids[1:]:
            assert owner.setdefault(block, request.session) == request.session


def test_the_rate_over_time_is_kept() -> None:
    busy = [n / 10 for n in range(600)]  # 10/s in the first minute, 1/s in the second
    times_s = [*busy, *(60.0 + n for n in range(60))]
    source = Workload(
        requests=tuple(
            TraceRequest(index=n, arrival_s=at_s, input_tokens=1, output_tokens=1) for n, at_s in enumerate(times_s)
        )
    )
    arrivals_s = [one.arrival_s for one in resampled(source, 239.0, seed=1).requests]
    counts, _ = np.histogram(np.array(arrivals_s) % 119.2, bins=[0, 60, 119.2])
    assert counts == pytest.approx([1_200, 120], rel=0.02)


def test_arrivals_ascend_and_end_at_the_horizon(short: Workload) -> None:
    found = resampled(short, 800.0, seed=3).requests
    arrivals_s = [one.arrival_s for one in found]
    assert arrivals_s == sorted(arrivals_s)
    assert 790 < arrivals_s[-1] < 800
    assert [one.index for one in found] == list(range(len(found)))


def test_the_seed_decides_the_draw(short: Workload) -> None:
    assert resampled(short, 300.0, seed=1) == resampled(short, 300.0, seed=1)
    assert resampled(short, 300.0, seed=1) != resampled(short, 300.0, seed=2)


def test_sessions_are_drawn_whole_and_keep_their_common_head() -> None:
    source = load_workload("synthetic:claude-code", limit=100, seed=1)
    found = resampled(source, 3 * source.sessions[-1].start_s, seed=1)
    lengths = {len(session.turns) for session in source.sessions}
    assert len(found.sessions) > 2 * len(source.sessions)
    assert {len(session.turns) for session in found.sessions} <= lengths
    heads = {session.turns[0].hash_ids[:233] for session in found.sessions}
    assert len(heads) == 1
    tails = [block for session in found.sessions for block in set(session.turns[-1].hash_ids[233:])]
    assert len(tails) == len(set(tails))
