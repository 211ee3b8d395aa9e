import pytest

from loadtest.compare.saturation import PRECISION, NoSaturationError, crossing, saturate


def falling(to: float, *, at: float) -> float:
    """Half attained at a scale of `to`."""
    return 1.0 / (1.0 + at / to)


@pytest.mark.parametrize("first", [0.1, 4.0, 100.0])
def test_the_crossing_is_found_from_either_side(first: float) -> None:
    found = crossing(lambda at: falling(5.0, at=at), share=0.5, first=first)
    assert falling(5.0, at=found) >= 0.5
    assert found == pytest.approx(5.0, rel=PRECISION)


def test_a_share_that_is_never_missed_is_no_saturation() -> None:
    with pytest.raises(NoSaturationError, match="still kept"):
        crossing(lambda _: 1.0, share=0.7, first=1.0)


def test_a_share_that_is_never_kept_is_no_saturation() -> None:
    with pytest.raises(NoSaturationError, match="still missed"):
        crossing(lambda _: 0.2, share=0.7, first=1.0)


def test_the_rule_is_tuned_again_where_the_search_ended() -> None:
    tuned_at: list[float] = []

    def tune(scale: float) -> str:
        tuned_at.append(scale)
        return "for few" if scale < 6.0 else "for many"

    def attained(rule: str, scale: float) -> float:
        return falling({"for few": 8.0, "for many": 10.0}[rule], at=scale)

    found = saturate(tune, attained, share=0.5, first=4.0)
    assert found.rule == "for many"
    assert found.scale == pytest.approx(10.0, rel=PRECISION)
    assert found.attained_ratio >= 0.5
    assert len(tuned_at) == 3
