"""The metrics reference is the declarations, written out."""

from pathlib import Path

from gateway.telemetry.metrics import METRICS
from gateway.telemetry.reference import metrics_reference

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"


def test_page_is_what_the_declarations_say() -> None:
    assert PAGE.read_text() == metrics_reference(), (
        "run: python -m gateway.telemetry.reference > docs/reference/metrics.md"
    )


def test_every_metric_has_one_row_in_the_table() -> None:
    page = metrics_reference()
    for spec in METRICS:
        assert page.count(f"| `{spec.full_name}` | {spec.type} |") == 1
