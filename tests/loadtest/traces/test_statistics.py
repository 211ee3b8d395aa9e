from dataclasses import astuple

import pytest

from loadtest.traces.statistics import describe
from loadtest.traces.types import TraceRequest


def request(at_s: float, input_tokens: int = 10, hash_ids: tuple[int, ...] = ()) -> TraceRequest:
    return TraceRequest(index=0, arrival_s=at_s, input_tokens=input_tokens, output_tokens=3, hash_ids=hash_ids)


def test_rates_gaps_and_lengths() -> None:
    found = describe([request(0.0, 10), request(1.0, 20), request(4.0, 30)])
    assert found.requests == 3
    assert found.rate_rps == pytest.approx(0.75)
    assert found.gap_cv == pytest.approx(0.5)
    assert astuple(found.isl_tokens) == pytest.approx((20, 28, 29.8, 20))
    assert found.osl_tokens.mean == 3
    assert found.reuse_ratio == 0.0


def test_reuse_counts_leading_blocks_that_were_seen() -> None:
    found = describe([request(0, hash_ids=(1, 2, 3)), request(1, hash_ids=(1, 2, 4)), request(2, hash_ids=(5, 6))])
    assert found.reuse_ratio == pytest.approx(2 / 8)
