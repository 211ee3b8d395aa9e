import pytest

from loadtest.conserve.arms import PER_TURN, PER_TURN_COLD, REMOTE
from loadtest.conserve.claims import claims
from loadtest.conserve.report import claim_lines, markdown
from loadtest.conserve.results import CellFigures, ConserveReport
from tests.loadtest.conserve.conserve_lab import EXACT, arm, cell


def held(one: CellFigures) -> dict[str, bool]:
    return {claim.what: claim.holds for claim in claims([one])}


def test_conserve_beside_a_baseline_that_retains_prefixes() -> None:
    better = cell(arm(PER_TURN.name), arm("conserve", baseline=EXACT, energy_j=4600.0))
    assert held(better) == {
        "conserve: transfers per conversation": True,
        "conserve: energy per conversation against 'per turn'": True,
        "conserve: P95 TTFET against 'per turn'": True,
        "conserve: SLO attainment against 'per turn'": True,
    }
    worse = arm("conserve", baseline=EXACT, energy_j=4700.0, ttfet_p95_s=1.1, attained_ratio=0.8, transfers_mean=1.2)
    assert not any(held(cell(arm(PER_TURN.name), worse)).values())


def test_beside_one_without_retention_much_more_is_asked() -> None:
    found = held(cell(arm(PER_TURN_COLD.name), arm("conserve", baseline=EXACT, ttfet_p95_s=0.64, energy_j=4000.0)))
    assert found["conserve: P95 TTFET against 'per turn, no retention'"]
    found = held(cell(arm(PER_TURN_COLD.name), arm("conserve", baseline=EXACT, ttfet_p95_s=0.66, energy_j=4000.0)))
    assert not found["conserve: P95 TTFET against 'per turn, no retention'"]


def test_always_remote_is_claimed_about_on_many_prefillers_alone() -> None:
    arms = arm(REMOTE.name), arm("conserve", baseline=EXACT, ttfet_p95_s=0.5)
    assert held(cell(*arms))["conserve: P95 TTFET against 'always remote'"] is False
    assert "conserve: P95 TTFET against 'always remote'" not in held(cell(*arms, pools="1P3D"))


def test_capped_decoders_must_save_where_they_hold_the_slo_and_nowhere_else() -> None:
    what = "energy per conversation of capped decoders against 'conserve', the SLO held"
    conserve = arm("conserve", baseline=EXACT)
    saving = arm("conserve, capped decoders", baseline=EXACT, energy_j=4400.0)
    assert held(cell(arm(PER_TURN.name), conserve, saving))[what]
    late = arm("conserve, capped decoders", baseline=EXACT, energy_j=4400.0, attained_ratio=0.5)
    assert what not in held(cell(arm(PER_TURN.name), conserve, late))


@pytest.mark.parametrize(("busy", "is_claimed"), [(0.79, False), (0.81, True)])
def test_combined_beside_both_and_by_much_where_prefillers_are_busy(busy: float, is_claimed: bool) -> None:
    arms = (
        arm(PER_TURN.name, busy=busy),
        arm("conserve", baseline=EXACT, ttfet_p95_s=0.9, energy_j=4500.0),
        arm("combined", baseline=EXACT, ttfet_p95_s=0.8, energy_j=4750.0),
    )
    found = held(cell(*arms, pools="1P3D"))
    assert found["combined: P95 TTFET against 'per turn'"]
    assert found["combined: P95 TTFET against 'conserve'"]
    assert not found["combined: energy above ConServe's, in points of the baseline's"]
    much = f"combined: P95 TTFET below the better of both, prefillers {busy:.0%} busy"
    assert found.get(much) is (False if is_claimed else None)


def test_where_memory_is_scarce_ten_percent_more_are_allowed() -> None:
    fifo = arm("conserve, plain FIFO", baseline=EXACT, ttfet_p95_s=30.0)
    found = claims([cell(arm(PER_TURN.name), arm("conserve", baseline=EXACT, ttfet_p95_s=1.05), fifo, kv_share=0.3)])
    assert [claim.holds for claim in found] == [True, True]
    assert "1.30 times the KV" in found[0].what
    assert found[1].found.startswith("+2900.0%")
    (late, _) = claims([cell(arm(PER_TURN.name), arm("conserve", baseline=EXACT, ttfet_p95_s=1.2), fifo, kv_share=0.3)])
    assert not late.holds


def test_a_report_tells_every_claim_and_every_arm() -> None:
    cells = [cell(arm(PER_TURN.name), arm("conserve", baseline=EXACT, ttfet_p95_s=1.5), stand_ins=["traces/a.gz"])]
    report = ConserveReport(is_claim=False, claims=claims(cells), cells=cells, weights={})
    text = markdown(report)
    assert not report.holds
    assert "| **no** |" in text
    assert "no claim" in text
    assert "traces/a.gz" in text
    assert "| conserve | 0.20 [0.20, 0.20] | 1.50 [1.50, 1.50] |" in text
    lines = claim_lines(report.claims)
    assert [line[:4] for line in lines] == ["ok  ", "MISS", "MISS", "ok  "]
