"""Values in their units, as the pictures show them."""

import math

import pytest

from deploy.grafana.preview_values import text


@pytest.mark.parametrize(
    ("value", "unit", "written"),
    [
        (0.015, "reqps", "0.015 req/s"),
        (0.45, "ops", "0.45 ops/s"),
        (3.2, "reqps", "3.2 req/s"),
        (24_000.0, "si:tok/s", "24 ktok/s"),
        (28_123.0, "short", "28.1k"),
        (0.0, "short", "0"),
        (1_500.0, "watt", "1.5 kW"),
        (20.0, "watt", "20 W"),
        (0.9534, "percentunit", "95.3%"),
        (1.0, "percentunit", "100%"),
        (0.0246, "s", "24.6 ms"),
        (0.00012, "s", "120 µs"),
        (0.0, "s", "0 s"),
        (123.4, "s", "123 s"),
        (24.2, "suffix: x", "24.2 x"),
        (math.nan, "s", "no traffic"),
        (None, "s", "no traffic"),
    ],
)
def test_a_value_has_three_figures_and_its_unit(value: float | None, unit: str, written: str) -> None:
    assert text(value, unit) == written
