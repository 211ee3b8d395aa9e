import itertools
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.engine import fit_costs
from loadtest.engine.cost_file import Knots
from loadtest.engine.fitting.overhead import decode_seconds
from loadtest.engine.fitting.regression import isotonic, relative_least_squares, residual, rounded
from loadtest.engine.fitting.shapes import LLAMA_8B, LLAMA_70B_TP4, SHAPES, ModelShape

REPOSITORY = Path(__file__).parents[3]
COSTS = Path(os.environ.get("TIDEGATE_SHARED", REPOSITORY.parent / "shared")) / "data" / "costs"
SHIPPED = REPOSITORY / "loadtest" / "engine" / "costs"


@pytest.mark.shared_data
@pytest.mark.skipif(not COSTS.is_dir(), reason="needs the public measurements in shared/data/costs")
def test_the_shipped_files_are_what_the_fit_gives(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fit_costs.main(["--data", str(COSTS), "--out", str(tmp_path)])
    written = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert written == {path.name: path.read_text() for path in SHIPPED.iterdir()}
    report = capsys.readouterr().out
    assert all(shape.name in report for shape in SHAPES)


def test_tensor_parallelism_splits_heads_and_widths() -> None:
    products = {product.name: (product.outer, product.inner) for product in LLAMA_70B_TP4.products}
    assert products == {
        "qkv_proj": (2560, 8192),
        "o_proj": (8192, 2048),
        "gate_up_proj": (14_336, 8192),
        "down_proj": (8192, 7168),
    }


@pytest.mark.parametrize(("shape", "parameters"), [(LLAMA_8B, 8.03e9), (LLAMA_70B_TP4, 70.55e9)])
def test_products_and_embeddings_hold_all_parameters(shape: ModelShape, parameters: float) -> None:
    weights = sum(product.outer * product.inner for product in shape.products)
    embeddings = 2 * 128_256 * shape.hidden
    assert shape.gpus * shape.layers * weights + embeddings == pytest.approx(parameters, rel=0.001)


@given(st.lists(st.floats(0, 1e3), min_size=1, max_size=30))
def test_isotonic_values_never_fall_and_keep_their_mean(values: list[float]) -> None:
    result = isotonic(values)
    assert all(b >= a - 1e-9 for a, b in itertools.pairwise(result))
    assert sum(result) == pytest.approx(sum(values))


def test_isotonic_pools_only_what_falls() -> None:
    assert isotonic([1.0, 4.0, 2.0, 5.0]) == (1.0, 3.0, 3.0, 5.0)


def test_least_squares_weigh_errors_by_the_measurement() -> None:
    features = np.array([[1.0, 1.0], [1.0, 10.0], [1.0, 1000.0]])
    assert relative_least_squares(features, features @ np.array([2.0, 3.0])) == pytest.approx([2.0, 3.0])


def test_a_negative_cost_is_an_error() -> None:
    features = np.array([[1.0, 1.0], [1.0, 2.0], [1.0, 3.0]])
    with pytest.raises(ValueError, match="negative cost"):
        relative_least_squares(features, np.array([3.0, 2.0, 1.0]))


def test_residuals_are_relative_to_the_measurement() -> None:
    line = Knots(at=(1, 3), seconds=(1.0, 3.0))
    error = residual("term", "file", {1: 1.0, 2: 4.0, 3: 3.0}, line)
    assert (error.points, error.median, error.p90) == (3, 0.0, 0.4)


def test_numbers_keep_five_digits() -> None:
    assert rounded(0.001234567) == 0.0012346


def test_only_seconds_without_prefill_show_the_step_time() -> None:
    request = {"scheduled_ts": 100.0, "first_token_ts": 100.5, "last_token_ts": 104.0, "input_toks": 10}
    run = {
        "requests": [request | {"output_toks": 36}] * 3,
        "timeseries_csv": "t,gen_throughput\n1.0,10\n2.0,30\n3.0,30\n4.0,60\n9.0,1\n",
    }
    seconds = list(decode_seconds(run))
    assert [second.step_s for second in seconds] == [0.1, 0.1, 0.05]
    assert seconds[0].sequences == 3
    assert seconds[0].context_tokens == pytest.approx(10 + 36 * 1.0 / 3.5)
