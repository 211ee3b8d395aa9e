from collections import OrderedDict
from collections.abc import Sequence

import pytest

from loadtest.traces.statistics import describe
from loadtest.traces.synthetic_tools import ToolMix, tool_trace
from loadtest.traces.types import TraceRequest

HIT_RATIOS = {16: 0.193, 51: 0.272, 226: 0.355, 1_011: 0.365, 4_044: 0.395, 8_089: 0.468, 20_562: 0.551, 10**9: 0.591}
"""Mooncake's tool and agent trace: share of prompt tokens found in an LRU cache of so many blocks (second half of the
requests, after a warm-up by the first)."""


@pytest.fixture(scope="module")
def trace() -> list[TraceRequest]:
    return tool_trace(ToolMix(), 23_608, seed=7)


def lru_hit_ratio(requests: Sequence[TraceRequest], capacity: int) -> float:
    cache: OrderedDict[int, None] = OrderedDict()
    hit = asked = 0
    for number, request in enumerate(requests):
        known = next((n for n, block in enumerate(request.hash_ids) if block not in cache), len(request.hash_ids))
        if 2 * number >= len(requests):
            hit += min(known * request.block_tokens, request.input_tokens)
            asked += request.input_tokens
        for block in reversed(request.hash_ids):  # the head is the last to go
            cache[block] = None
            cache.move_to_end(block)
        while len(cache) > capacity:
            cache.popitem(last=False)
    return hit / asked


def test_mean_lengths_and_rate(trace: list[TraceRequest]) -> None:
    found = describe(trace)
    assert found.isl_tokens.mean == pytest.approx(8_590, rel=0.05)
    assert found.osl_tokens.mean == pytest.approx(182, rel=0.05)
    assert found.rate_rps == pytest.approx(6.56)


@pytest.mark.parametrize("capacity", [16, 226, 8_089, 10**9])
def test_a_cache_hits_as_in_the_real_trace(trace: list[TraceRequest], capacity: int) -> None:
    assert lru_hit_ratio(trace, capacity) == pytest.approx(HIT_RATIOS[capacity], abs=0.03)


def test_one_tool_makes_most_calls_and_its_prompt_is_the_same(trace: list[TraceRequest]) -> None:
    heads: dict[tuple[int, ...], int] = {}
    for request in trace:
        heads[request.hash_ids[:12]] = heads.get(request.hash_ids[:12], 0) + 1
    assert max(heads.values()) / len(trace) == pytest.approx(0.44, abs=0.01)


def test_ids_never_repeat_in_a_prompt_and_arrivals_ascend(trace: list[TraceRequest]) -> None:
    assert all(len(set(request.hash_ids)) == len(request.hash_ids) for request in trace)
    assert all(len(request.hash_ids) == -(-request.input_tokens // 512) for request in trace)
    arrivals_s = [request.arrival_s for request in trace]
    assert arrivals_s == sorted(arrivals_s)
    assert [request.index for request in trace] == list(range(len(trace)))


def test_a_mix_of_tools_alone_and_an_empty_trace() -> None:
    assert len(tool_trace(ToolMix(tools=((1.0, 3),)), 50, seed=1)) == 50
    assert tool_trace(ToolMix(), 0, seed=1) == []
