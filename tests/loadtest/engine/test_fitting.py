import itertools
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.engine import fit_costs
from loadtest.engine.fitting.overhead import decode_seconds
from loadtest.engine.fitting.products import ProductTimes
from loadtest.engine.fitting.regression import isotonic, relative_least_squares, residual, rounded
from loadtest.engine.fitting.shapes import LLAMA_8B, LLAMA_70B, QWEN3_32B, Deployment, Model, Precision, Product
from loadtest.engine.fitting.systems import A100, H100, H200
from loadtest.engine.presets import DEPLOYMENTS
from policy_store.costs.file import Knots

REPOSITORY = Path(__file__).parents[3]
COSTS = Path(os.environ.get("TIDEGATE_SHARED", REPOSITORY.parent / "shared")) / "data" / "costs"
SHIPPED = REPOSITORY / "policy_store" / "costs"


@pytest.mark.shared_data
@pytest.mark.skipif(not COSTS.is_dir(), reason="needs the public measurements in shared/data/costs")
def test_the_shipped_files_are_what_the_fit_gives(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fit_costs.main(["--data", str(COSTS), "--out", str(tmp_path)])
    written = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert written == {path.name: path.read_text() for path in SHIPPED.glob("*.json")}
    report = capsys.readouterr().out
    assert all(deployment.name in report for deployment in DEPLOYMENTS)


@pytest.mark.shared_data
@pytest.mark.skipif(not COSTS.is_dir(), reason="needs the public measurements in shared/data/costs")
def test_a_precision_that_was_not_measured_cannot_be_fitted() -> None:
    with pytest.raises(LookupError, match="fp8"):
        fit_costs.fit(Deployment(system=A100, model=LLAMA_8B, weights=Precision.FP8), COSTS, 0.001)


def test_tensor_parallelism_splits_heads_and_widths() -> None:
    split = Deployment(system=H100, model=LLAMA_70B, gpus=4)
    products = {product.name: (product.outer, product.inner) for product in split.products}
    assert products == {
        "qkv_proj": (2560, 8192),
        "o_proj": (8192, 2048),
        "gate_up_proj": (14_336, 8192),
        "down_proj": (8192, 7168),
    }


@pytest.mark.parametrize(
    ("model", "parameters"), [(LLAMA_8B, 8_030_261_248), (LLAMA_70B, 70_553_706_496), (QWEN3_32B, 32_762_123_264)]
)
def test_a_model_has_as_many_weights_as_its_checkpoint(model: Model, parameters: int) -> None:
    assert model.layer_weights + model.embedding_weights + model.norm_weights == parameters


@pytest.mark.parametrize("model", [LLAMA_8B, LLAMA_70B, QWEN3_32B])
@pytest.mark.parametrize("gpus", [1, 2, 4, 8])
def test_the_products_of_all_gpus_hold_the_weights_of_a_layer(model: Model, gpus: int) -> None:
    products = Deployment(system=H100, model=model, gpus=gpus).products
    weights = sum(product.outer * product.inner for product in products)
    assert gpus * model.layers * weights == model.layer_weights


def test_fp8_halves_the_layers_and_the_cache_but_not_the_embeddings() -> None:
    plain = Deployment(system=H200, model=LLAMA_70B)
    small = Deployment(system=H200, model=LLAMA_70B, weights=Precision.FP8, kv=Precision.FP8)
    assert plain.weight_bytes - small.weight_bytes == LLAMA_70B.layer_weights
    assert plain.kv_bytes_per_token == 2 * small.kv_bytes_per_token == 327_680


@pytest.mark.parametrize(
    ("gpus", "weights", "kv", "name"),
    [
        (1, Precision.BF16, Precision.BF16, "h200-llama70b"),
        (4, Precision.BF16, Precision.BF16, "h200-llama70b-tp4"),
        (4, Precision.FP8, Precision.FP8, "h200-llama70b-tp4-fp8"),
        (4, Precision.FP8, Precision.BF16, "h200-llama70b-tp4-fp8-kv16"),
        (1, Precision.BF16, Precision.FP8, "h200-llama70b-kv8"),
    ],
)
def test_a_name_tells_deployments_apart(gpus: int, weights: Precision, kv: Precision, name: str) -> None:
    assert Deployment(system=H200, model=LLAMA_70B, gpus=gpus, weights=weights, kv=kv).name == name


def test_a_model_with_normed_queries_and_keys_has_one_more_element_wise_kernel() -> None:
    plain = Deployment(system=H100, model=LLAMA_8B).elementwise_bytes
    normed = Deployment(system=H100, model=QWEN3_32B).elementwise_bytes
    assert len(normed) == len(plain) + 1


TIMES = ProductTimes({1: {(2, 2): 1.0, (2, 4): 3.0, (4, 2): 2.0, (4, 4): 8.0}}, (2, 4), (2, 4))


@pytest.mark.parametrize(
    ("outer", "inner", "seconds"), [(2, 2, 1.0), (2, 3, 2.0), (3, 2, 1.5), (3, 3, 3.5), (4, 4, 8.0), (12, 4, 24.0)]
)
def test_products_are_interpolated_and_wider_ones_scaled(outer: int, inner: int, seconds: float) -> None:
    assert TIMES.seconds(Product(name="p", outer=outer, inner=inner), 1) == pytest.approx(seconds)


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


def test_a_cost_that_would_be_negative_is_zero_and_the_rest_fitted_without_it() -> None:
    features = np.array([[1.0, 1.0], [1.0, 2.0], [1.0, 3.0]])
    constant, slope = relative_least_squares(features, np.array([3.0, 2.0, 1.0]))
    assert slope == 0
    assert constant == pytest.approx((1 / 3 + 1 / 2 + 1) / (1 / 9 + 1 / 4 + 1))


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
