import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.step_cost import CostTable, Curve, StepWork
from loadtest.engine.presets import ENGINES
from loadtest.engine.transfer import transfer_seconds
from policy_store.costs.file import load_cost_table, read_shipped, render
from tests.loadtest.engine.engine_lab import SPEC

NAMES = sorted(ENGINES)
TABLES = st.sampled_from([load_cost_table(name) for name in NAMES])
WORK = st.builds(
    StepWork,
    prefill=st.lists(st.tuples(st.integers(2, 8192), st.integers(0, 100_000)), max_size=4).map(tuple),
    decode_sequences=st.integers(1, 256),
    decode_context_tokens=st.integers(256, 400_000),
)


def step_ms(name: str, **work: object) -> float:
    return load_cost_table(name).step_seconds(StepWork(**work)) * 1e3


@given(table=TABLES, work=WORK, more=st.integers(1, 5000))
def test_more_work_never_takes_less_time(table: CostTable, work: StepWork, more: int) -> None:
    base_s = table.step_seconds(work)
    larger = [
        work._replace(prefill=(*work.prefill, (more, 0))),
        work._replace(decode_sequences=work.decode_sequences + more),
        work._replace(decode_context_tokens=work.decode_context_tokens + more),
    ]
    if work.prefill:
        (new, before), *rest = work.prefill
        larger.append(work._replace(prefill=((new + more, before), *rest)))
        larger.append(work._replace(prefill=((new, before + more), *rest)))
    assert all(table.step_seconds(other) >= base_s for other in larger)


@given(table=TABLES, new=st.integers(2, 8000), before=st.integers(1, 100_000))
def test_a_cached_prefix_costs_less_than_computing_it(table: CostTable, new: int, before: int) -> None:
    cached = table.step_seconds(StepWork(prefill=((new, before),)))
    computed = table.step_seconds(StepWork(prefill=((new + before, 0),)))
    assert cached <= computed


@given(table=TABLES, first=st.integers(64, 8000), second=st.integers(64, 8000))
def test_attention_of_two_chunks_covers_the_pairs_of_the_whole(table: CostTable, first: int, second: int) -> None:
    def pairs(*chunks: tuple[int, int]) -> float:
        bare = dataclasses.replace(
            table, step_overhead_s=0.0, tokens=Curve((0, 1), (0.0, 0.0)), sequences=Curve((0, 1), (0.0, 0.0))
        )
        read = sum(before for _, before in chunks)
        return bare.step_seconds(StepWork(prefill=chunks)) - read * table.attention.kv_token_s

    whole = pairs((first + second, 0))
    parts = pairs((first, 0)) + pairs((second, first))
    extra = table.attention.launch_s + table.attention.prefill_sequence_s
    assert parts - extra == pytest.approx(whole, rel=1e-9)


@pytest.mark.parametrize(
    ("name", "low_ms", "high_ms"),
    [
        ("h100-llama8b", 6, 9),
        ("h100-llama70b-tp4", 11, 18),
        ("h200-llama70b-tp4", 9, 15),
        ("h200-llama70b-tp4-fp8", 6, 13),
        ("a100-llama8b", 9, 14),
    ],
)
def test_one_decode_reads_the_weights_once(name: str, low_ms: float, high_ms: float) -> None:
    # Weights over memory bandwidth give 4.8, 10.5, 7.3, 3.9 and 7.9 ms; kernels reach some 80 % of it.
    assert low_ms < step_ms(name, decode_sequences=1, decode_context_tokens=1000) < high_ms


@pytest.mark.parametrize(
    ("name", "low_ms", "high_ms"),
    [
        ("h100-llama8b", 150, 250),
        ("h100-llama70b-tp4", 500, 800),
        ("h200-llama70b-tp4-fp8", 280, 550),
        ("a100-llama8b", 450, 700),
    ],
)
def test_a_full_prefill_step_is_bound_by_compute(name: str, low_ms: float, high_ms: float) -> None:
    # 2 x parameters x tokens over 600 to 700 TFLOP/s per H100, twice that in fp8, 250 per A100; attention, all-reduces.
    assert low_ms < step_ms(name, prefill=((8192, 0),)) < high_ms


@pytest.mark.parametrize("name", NAMES)
def test_a_larger_batch_shares_the_cost_of_the_weights(name: str) -> None:
    alone = step_ms(name, decode_sequences=1, decode_context_tokens=1000)
    together = step_ms(name, decode_sequences=64, decode_context_tokens=64_000)
    assert together < 3 * alone


def test_a_curve_is_linear_between_its_knots_flat_before_and_straight_beyond() -> None:
    curve = Curve((2, 4, 8), (1.0, 3.0, 4.0))
    assert [curve.at(x) for x in (0, 2, 3, 4, 6, 8, 12)] == [1.0, 1.0, 2.0, 3.0, 3.5, 4.0, 5.0]


def test_the_sum_of_curves_is_exact_between_the_knots_of_both() -> None:
    left, right = Curve((1, 5, 9), (0.0, 4.0, 4.0)), Curve((1, 4, 10), (1.0, 1.0, 7.0))
    total = left.plus(right)
    assert all(total.at(x) == pytest.approx(left.at(x) + right.at(x)) for x in range(1, 20))


@pytest.mark.parametrize(
    ("xs", "ys"),
    [((1,), (1.0,)), ((1, 2), (1.0,)), ((2, 1), (1.0, 2.0)), ((1, 2), (2.0, 1.0)), ((1, 2), (-1.0, 1.0))],
)
def test_a_curve_that_falls_or_is_malformed_is_an_error(xs: tuple[int, ...], ys: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match=r"knot|fall"):
        Curve(xs, ys)


def test_a_transfer_takes_its_latency_and_its_bytes() -> None:
    assert transfer_seconds(0, SPEC) == 0.5
    assert transfer_seconds(8, SPEC) == 0.5 + 8 * 10 / 40


def test_a_table_that_does_not_exist_is_a_lookup_error() -> None:
    with pytest.raises(LookupError, match="no-such-engine"):
        load_cost_table("no-such-engine")


@pytest.mark.parametrize("name", NAMES)
def test_a_shipped_file_names_its_sources_formula_and_residuals(name: str) -> None:
    provenance = read_shipped(name).provenance
    terms = {"dense", "output_layer", "attention", "step_overhead"}
    assert terms <= {source.term for source in provenance.sources}
    assert provenance.formula
    assert all(residual.points for residual in provenance.residuals)


@pytest.mark.parametrize("name", NAMES)
def test_a_shipped_file_is_small_and_readable(name: str) -> None:
    text = render(read_shipped(name))
    assert len(text) < 8000
    assert max(map(len, text.splitlines())) < 300
