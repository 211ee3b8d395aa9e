import json
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from loadtest.traces.servegen import servegen_requests
from loadtest.traces.types import TraceError, TraceRequest

SERVEGEN = Path(__file__).parents[4] / "shared" / "data" / "traces" / "servegen_m-mid.jsonl.gz"

LENGTHS = {"0": {"input_tokens": [10, 100, 1_000], "output_tokens": [5, 5, 5]}}
GAMMA = [0, 4.0, 2.0, "Gamma", 0.25, 1.0]


def client(number: int, *rows: Sequence[object], lengths: object = LENGTHS) -> str:
    return json.dumps({"client": number, "trace": rows, "len": lengths})


@pytest.fixture
def pool(tmp_path: Path) -> Callable[..., str]:
    def write(*lines: str) -> str:
        path = tmp_path / "pool.jsonl"
        path.write_text("\n".join(lines))
        return str(path)

    return write


def drawn(
    name: str, *, from_s: float = 0.0, to_s: float = 600.0, rate_rps: float | None = None, seed: int = 1
) -> list[TraceRequest]:
    return list(servegen_requests(name, from_s=from_s, to_s=to_s, rate_rps=rate_rps, seed=seed))


def gaps_s(requests: list[TraceRequest]) -> np.ndarray:
    return np.diff([one.arrival_s for one in requests])


@pytest.mark.parametrize(
    ("row", "cv"),
    [
        pytest.param([0, 40.0, 2.0, "Gamma", 0.25, 0.1], 2.0, id="gamma"),
        pytest.param([0, 40.0, 0.5, "Gamma", 4.0, 0.1], 0.5, id="gamma-smooth"),
        pytest.param([0, 40.0, 0.52, "Weibull", 2.0, 0.1], 0.5227, id="weibull"),
    ],
)
def test_a_client_keeps_its_rate_and_burstiness(pool: Callable[..., str], row: list[object], cv: float) -> None:
    found = drawn(pool(client(1, row)))
    assert len(found) / 600 == pytest.approx(40.0, rel=0.06)
    assert np.std(gaps_s(found)) / np.mean(gaps_s(found)) == pytest.approx(cv, rel=0.06)


def test_a_bursty_client_brings_no_more_than_its_rate_in_a_short_window(pool: Callable[..., str]) -> None:
    name = pool(*(client(n, [0, 0.05, 4.0, "Gamma", 0.0625, 1.0]) for n in range(400)))
    assert len(drawn(name, to_s=100.0)) / 100 == pytest.approx(20.0, rel=0.15)


def test_rates_follow_the_rows_and_absent_rows_are_silence(pool: Callable[..., str]) -> None:
    poisson = ["Gamma", 1.0, 1.0]
    name = pool(client(1, [0, 10.0, 1.0, *poisson], [600, 2.0, 1.0, *poisson], [1800, 5.0, 1.0, *poisson]))
    counts, _ = np.histogram([one.arrival_s for one in drawn(name, to_s=3_000.0)], bins=np.arange(0, 3_001, 600))
    assert counts == pytest.approx([6_000, 1_200, 0, 3_000, 0], rel=0.1)


def test_lengths_are_those_of_the_clients_window(pool: Callable[..., str]) -> None:
    tables = {**LENGTHS, "600": {"input_tokens": [7, 7], "output_tokens": [9, 9]}}
    rows = [[at_s, 10.0, 1.0, "Gamma", 1.0, 1.0] for at_s in (0, 600)]
    found = drawn(pool(client(1, *rows, lengths=tables)), to_s=1_200.0)
    early = [one.input_tokens for one in found if one.arrival_s < 600]
    late = {(one.input_tokens, one.output_tokens) for one in found if one.arrival_s > 600}
    assert np.percentile(early, (25, 50, 75)) == pytest.approx((31.6, 100, 316), rel=0.1)
    assert late == {(7, 9)}


def test_a_window_is_counted_from_its_beginning(pool: Callable[..., str]) -> None:
    found = drawn(pool(client(1, GAMMA)), from_s=100.0, to_s=400.0)
    assert 0 <= found[0].arrival_s < 30
    assert 270 < found[-1].arrival_s < 300
    assert [one.index for one in found] == list(range(len(found)))


def test_a_target_rate_scales_all_clients_and_keeps_burstiness(pool: Callable[..., str]) -> None:
    name = pool(client(1, [0, 3.0, 2.0, "Gamma", 0.25, 1.0]), client(2, [0, 1.0, 1.0, "Gamma", 1.0, 1.0]))
    assert len(drawn(name, rate_rps=60.0)) / 600 == pytest.approx(60.0, rel=0.06)


def test_clients_without_lengths_are_left_out(pool: Callable[..., str]) -> None:
    name = pool(client(1, GAMMA), client(2, [0, 100.0, 1.0, "Gamma", 1.0, 1.0], lengths=None), client(3))
    assert len(drawn(name)) / 600 == pytest.approx(4.0, rel=0.25)


def test_the_seed_decides_the_draw(pool: Callable[..., str]) -> None:
    name = pool(client(1, GAMMA))
    assert drawn(name, seed=1) == drawn(name, seed=1)
    assert drawn(name, seed=1) != drawn(name, seed=2)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("{", "pool.jsonl:1: "),
        (client(1, [0, 1.0, 1.0, "Pareto", 1.0, 1.0]), "pool.jsonl:1: .*no Gamma or Weibull"),
        (client(1, [0, 1.0, 0.0, "Gamma", 1.0, 1.0]), "pool.jsonl:1: .*no Gamma or Weibull"),
        (client(1, GAMMA, lengths={"x": LENGTHS["0"]}), "pool.jsonl:1: "),
        (client(1, GAMMA, lengths={"0": {"input_tokens": [9, 1], "output_tokens": [1, 2]}}), "ascending"),
        (client(1), "no client with lengths"),
    ],
)
def test_a_bad_pool_is_named(pool: Callable[..., str], line: str, complaint: str) -> None:
    with pytest.raises(TraceError, match=complaint):
        drawn(pool(line))


@pytest.mark.shared_data
@pytest.mark.skipif(not SERVEGEN.exists(), reason=f"{SERVEGEN.name} is not here")
def test_the_real_pool_has_its_documented_lengths_over_the_day() -> None:
    found = drawn(str(SERVEGEN), to_s=86_400.0, rate_rps=0.4)
    assert len(found) / 86_400 == pytest.approx(0.4, rel=0.1)
    # The last of 25 knots is the maximum, so the 99th percentile is not known from them.
    assert np.percentile([one.input_tokens for one in found], (50, 90)) == pytest.approx((255, 1_243), rel=0.1)
    assert np.percentile([one.output_tokens for one in found], (50, 90)) == pytest.approx((26, 412), rel=0.1)


@pytest.mark.shared_data
@pytest.mark.skipif(not SERVEGEN.exists(), reason=f"{SERVEGEN.name} is not here")
def test_the_real_pool_is_drawn_no_further_than_asked() -> None:
    whole_day = servegen_requests(str(SERVEGEN), from_s=0.0, to_s=86_400.0, rate_rps=None, seed=1)
    assert len(list(islice(whole_day, 100))) == 100
