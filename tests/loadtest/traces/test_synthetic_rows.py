import pytest

from loadtest.traces.statistics import describe
from loadtest.traces.synthetic_rows import AZURE_CODE, AZURE_CONV, RowMix, row_trace


@pytest.mark.parametrize(
    ("mix", "requests", "isl", "osl", "gap_cv"),
    [
        pytest.param(AZURE_CONV, 19_366, (1_020, 2_735, 4_142, 1_155), (129, 424, 601, 211), 1.09, id="conv"),
        pytest.param(AZURE_CODE, 8_819, (1_469, 5_194, 7_436, 2_048), (13, 55, 252, 28), 13.2, id="code"),
    ],
)
def test_statistics_are_those_of_the_azure_trace(
    mix: RowMix, requests: int, isl: tuple[float, ...], osl: tuple[float, ...], gap_cv: float
) -> None:
    found = describe(row_trace(mix, requests, seed=5))
    assert found.rate_rps == pytest.approx(mix.rate_rps)
    assert found.gap_cv == pytest.approx(gap_cv, rel=0.2)
    for made, real in ((found.isl_tokens, isl), (found.osl_tokens, osl)):
        assert (made.p50, made.p90, made.p99, made.mean) == pytest.approx(real, rel=0.1)


def test_the_seed_decides_everything() -> None:
    assert row_trace(AZURE_CODE, 50, seed=1) == row_trace(AZURE_CODE, 50, seed=1)
    assert row_trace(AZURE_CODE, 50, seed=1) != row_trace(AZURE_CODE, 50, seed=2)


def test_an_empty_trace_is_empty() -> None:
    assert row_trace(AZURE_CONV, 0, seed=1) == []
