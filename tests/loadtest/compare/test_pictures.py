from pathlib import Path

import pytest

pytest.importorskip("matplotlib")

from loadtest.compare.baselines import DYNAMO_TUNED
from loadtest.compare.pictures import draw
from tests.loadtest.compare.compare_lab import arm, cell


def test_loads_that_were_looked_at_with_unequal_effort_share_a_picture(tmp_path: Path) -> None:
    whole = cell(arm(DYNAMO_TUNED), arm("table"), arm("joint"))
    brief = cell(arm(DYNAMO_TUNED), arm("joint"), load=0.4, requests_per_s=1.4)
    pictures = draw([whole, brief], tmp_path)
    assert len(pictures) == 3
    assert all(picture.stat().st_size > 1000 for picture in pictures)
