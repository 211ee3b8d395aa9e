from dataclasses import replace

import pytest

from gateway.core.types import Path
from policy_store.learn.bandit import Arm, Cell
from policy_store.learn.verdict import Contrast, Verdict, contrast, judged_by

LOCAL, REMOTE = Path.LOCAL, Path.REMOTE
CELL = Cell(incumbent=LOCAL, baseline=REMOTE)
TIE = Contrast(difference=0.001, error=0.01)


def judge(whole: Contrast, local: float, remote: float, *, requests: int = 200, cell: Cell = CELL) -> Path:
    arms = (Arm(value=value, requests=requests) for value in (local, remote))
    return judged_by(cell, whole, *arms, tie_errors=1.0)


def test_all_requests_judge_a_path_and_not_the_cells_own() -> None:
    assert judge(Contrast(difference=-0.1, error=0.01), local=0.9, remote=0.2) is REMOTE
    assert judge(Contrast(difference=0.1, error=0.01), local=0.2, remote=0.9) is LOCAL


def test_the_cells_own_requests_break_a_tie() -> None:
    assert judge(TIE, local=0.9, remote=0.2) is LOCAL


def test_a_tie_of_both_goes_to_the_baselines_path() -> None:
    assert judge(TIE, local=0.5, remote=0.5) is REMOTE
    assert judge(TIE, local=0.5, remote=0.5, cell=replace(CELL, baseline=LOCAL)) is LOCAL


def test_own_requests_that_nobody_judged_break_no_tie() -> None:
    assert judge(TIE, local=0.9, remote=0.1, requests=0) is REMOTE


def test_what_a_request_does_to_others_counts_beside_what_it_does_to_itself() -> None:
    arms = {"local": Arm(value=0.9, requests=400), "remote": Arm(value=0.8, requests=400)}
    harm = Contrast(difference=-0.3, error=0.05)
    assert judged_by(CELL, TIE, **arms, tie_errors=1.0) is LOCAL
    assert judged_by(CELL, TIE, **arms, tie_errors=1.0, others=harm) is REMOTE
    unclear = Contrast(difference=-0.1, error=0.5)
    assert judged_by(CELL, TIE, **arms, tie_errors=1.0, others=unclear) is CELL.baseline


def test_contrasts_add_up_with_their_errors() -> None:
    total = Contrast(difference=0.1, error=0.03).plus(Contrast(difference=-0.02, error=0.01).times(4.0))
    assert (total.difference, total.error) == (pytest.approx(0.02), pytest.approx(0.05))


def test_a_contrasts_error_shrinks_with_requests() -> None:
    few, many = contrast(0.8, 100, 0.7, 100), contrast(0.8, 10_000, 0.7, 10_000)
    assert few.difference == pytest.approx(0.1)
    assert few.error == pytest.approx(10 * many.error, rel=0.05)
    assert few.winner(tie_errors=2.0) is None
    assert many.winner(tie_errors=2.0) is LOCAL


def test_a_single_request_decides_nothing() -> None:
    assert contrast(1.0, 1, 0.93, 120).winner(tie_errors=1.0) is None
    assert contrast(1.0, 1, 1.0, 1).error > 0.0


def test_a_verdict_seeds_values_and_path() -> None:
    verdict = Verdict(
        cell=0, chosen=REMOTE, whole=TIE, local=Arm(value=0.4, requests=9), remote=Arm(value=0.6, requests=8)
    )
    seeded = verdict.seeded(CELL)
    assert (seeded.incumbent, seeded.local.value, seeded.remote.requests) == (REMOTE, 0.4, 8)
