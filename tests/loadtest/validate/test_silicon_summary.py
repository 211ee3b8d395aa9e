import pytest

from loadtest.engine.fitting.shapes import LLAMA_8B, LLAMA_70B, QWEN3_32B
from loadtest.validate.silicon_rows import SiliconRow
from loadtest.validate.silicon_summary import WORST_ROWS, summarise
from tests.loadtest.validate.silicon_lab import row


def test_a_model_is_judged_by_the_medians_of_its_absolute_errors() -> None:
    (model,) = summarise([row(-0.3, 0.1), row(0.1, -0.1), row(0.2, 0.4)]).models
    assert model.rows == 3
    assert [model.ttft_median, model.tpot_median] == pytest.approx([0.2, 0.1])
    assert [model.ttft_bias, model.tpot_bias] == pytest.approx([0.1, 0.1])


@pytest.mark.parametrize(
    ("rows", "holds"),
    [
        ([row(0.24, 0.14)], True),
        ([row(0.26, 0.0)], False),
        ([row(0.0, -0.16)], False),
        ([row(0.0, 0.0), row(0.3, 0.0, QWEN3_32B)], False),
        ([row(0.0, 0.0), row(9.0, 9.0, LLAMA_8B)], True),
    ],
)
def test_both_bounds_must_hold_for_every_bounded_model(rows: list[SiliconRow], holds: bool) -> None:
    assert summarise(rows).holds is holds


def test_groups_narrow_from_model_to_system_to_split() -> None:
    summary = summarise([row(0.1, 0.0, gpus=2), row(0.3, 0.0, gpus=4), row(0.5, 0.0, gpus=4)])
    assert [group.group for group in summary.models] == [("llama70b",)]
    assert [group.group for group in summary.systems] == [("llama70b", "h200")]
    assert [(group.group[-1], group.rows) for group in summary.splits] == [("tp2", 1), ("tp4", 2)]
    assert not any(group.is_bounded for group in (*summary.systems, *summary.splits))


def test_the_worst_rows_are_those_furthest_beyond_their_bound() -> None:
    near, far_ttft, far_tpot, beside = row(0.1, 0.1), row(0.5, 0.0), row(0.0, -0.6), row(9.0, 9.0, LLAMA_8B)
    assert summarise([near, far_ttft, far_tpot, beside]).worst == (far_tpot, far_ttft, near)
    assert len(summarise([row(0.1, 0.1, LLAMA_70B)] * 20).worst) == WORST_ROWS
