import csv
import gzip
from pathlib import Path
from typing import Any

import pytest

from loadtest.engine.fitting.shapes import QWEN3_32B, Precision
from loadtest.engine.fitting.systems import H100
from loadtest.validate.silicon_rows import FILE, read_benchmarks
from tests.loadtest.validate.silicon_lab import row

LINE = {
    "id": "a",
    "backend": "vllm",
    "mode": "agg",
    "model_path": "Qwen/Qwen3-32B",
    "system": "h100_sxm",
    "precision": "",
    "isl": "1024",
    "osl": "128",
    "batch_size": "16",
    "tp_size": "2",
    "pp_size": "1",
    "silicon_ttft_ms": "188.5",
    "silicon_tpot_ms": "22.25",
}


def write(directory: Path, *lines: dict[str, Any]) -> Path:
    with gzip.open(directory / FILE, "wt", newline="") as file:
        writer = csv.DictWriter(file, LINE)
        writer.writeheader()
        writer.writerows(lines)
    return directory


def test_a_row_is_read_with_its_units(tmp_path: Path) -> None:
    (point,) = read_benchmarks(write(tmp_path, LINE))
    assert (point.model, point.system, point.gpus, point.precision) == (QWEN3_32B, H100, 2, Precision.BF16)
    assert (point.isl_tokens, point.osl_tokens, point.concurrency) == (1024, 128, 16)
    assert (point.ttft_s, point.tpot_s) == (0.1885, 0.02225)


@pytest.mark.parametrize(
    "other",
    [
        {"backend": "sglang"},
        {"mode": "disagg"},
        {"model_path": "openai/gpt-oss-120b"},
        {"system": "b200_sxm"},
        {"pp_size": "2"},
    ],
)
def test_other_engines_models_systems_and_splits_are_left_out(tmp_path: Path, other: dict[str, str]) -> None:
    assert not list(read_benchmarks(write(tmp_path, LINE | other)))


def test_errors_are_relative_to_the_measurement() -> None:
    assert row(0.5, -0.25).ttft_error == pytest.approx(0.5)
    assert row(0.5, -0.25).tpot_error == pytest.approx(-0.25)
