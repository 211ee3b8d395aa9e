import msgspec
import pytest

from gateway.core.types import SloTarget
from loadtest.client.records import Record
from loadtest.report.slo import met_slo, parse_slo, slo_words

SLO = SloTarget(name="run", ttft_s=2.0, tpot_s=0.04)
GOOD = Record(request_id="r", index=0, scheduled_s=0.0, ok=True, ttft_s=1.0, tpot_s=0.03, e2e_s=5.0)


@pytest.mark.parametrize(
    ("text", "ttft_s", "tpot_s"),
    [
        ("ttft=2s,tpot=40ms", 2.0, 0.04),
        ("tpot=0.05s , ttft=1500ms", 1.5, 0.05),
        ("ttft=2s", 2.0, None),
        ("tpot=12.5ms", None, 0.0125),
    ],
)
def test_an_slo_is_read_in_seconds(text: str, ttft_s: float | None, tpot_s: float | None) -> None:
    slo = parse_slo(text)
    assert (slo.ttft_s, slo.tpot_s) == (ttft_s, tpot_s)


@pytest.mark.parametrize(
    "text", ["", "ttft=2", "ttft=fast", "itl=2s", "ttft=2s,", "ttft=1s,ttft=2s", "ttft=-1s", "ttft=2m"]
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not an SLO"):
        parse_slo(text)


@pytest.mark.parametrize("text", ["ttft=2s,tpot=40ms", "ttft=0.5s", "tpot=12.5ms"])
def test_words_say_what_was_asked(text: str) -> None:
    words = slo_words(parse_slo(text))
    assert words.replace(" ≤ ", "=").replace(" ", "").lower() == text


def test_an_slo_without_bounds_has_words_too() -> None:
    assert slo_words(SloTarget(name="run", ttft_s=None, tpot_s=None)) == "no bounds"


@pytest.mark.parametrize(
    ("change", "met"),
    [
        ({}, True),
        ({"ttft_s": 2.0, "tpot_s": 0.04}, True),
        ({"ttft_s": 2.01}, False),
        ({"tpot_s": 0.041}, False),
        ({"tpot_s": None}, True),
        ({"ok": False, "error": "http_503: busy"}, False),
        ({"ok": False, "error": "timeout", "ttft_s": None}, False),
        ({"ok": False, "error": "cancelled"}, None),
        ({"ok": False, "error": "cancelled", "ttft_s": None, "e2e_s": 1.0}, None),
        ({"ok": False, "error": "cancelled", "ttft_s": None, "e2e_s": 2.5}, False),
    ],
)
def test_a_request_is_judged_by_both_bounds_and_its_end(change: dict[str, object], met: bool | None) -> None:
    assert met_slo(msgspec.structs.replace(GOOD, **change), SLO) is met


def test_a_bound_that_is_not_set_does_not_judge() -> None:
    slow = msgspec.structs.replace(GOOD, ttft_s=99.0)
    assert met_slo(slow, SloTarget(name="run", ttft_s=None, tpot_s=0.04)) is True
