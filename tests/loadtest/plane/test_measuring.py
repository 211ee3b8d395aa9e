"""A load's result, and what it cost."""

import sys

import pytest

from loadtest.plane.measuring import LoadError, LoadResult, run_load, sample_of
from loadtest.plane.scenarios import BURST, HIDDEN, LATENCY, PLAIN, Scenario, memory_options, ramp_s, scenarios_named

RESULT = LoadResult(ok=100, err=2, el=2.0, ev=6600, lat50=1500.0, lat99=9000.0)
LOAD = """\
import json, os
asked = 10 * int("LOAD_HIDES" in os.environ) + int("include_usage" in os.environ["LOAD_MEMBERS"])
print(json.dumps({"ok": asked, "err": 0, "el": 1.5, "ev": 7, "lat50": 2.0, "lat99": -1.0, "more": "unread"}))
"""


def test_plain_loads_are_counted_by_request() -> None:
    sample = sample_of("single", PLAIN, "x", 3, RESULT, 5_000_000)
    assert (sample.units, sample.cpu_us, sample.per_s) == (100, 50.0, 50.0)
    assert (sample.done, sample.failed, sample.round) == (100, 2, 3)
    assert (sample.p50_us, sample.p99_us) == (1500.0, 9000.0)


def test_streams_are_counted_by_event() -> None:
    sample = sample_of("single", BURST, "x", 1, RESULT, 66_000_000)
    assert (sample.units, sample.cpu_us, sample.per_s) == (6600, 10.0, 3300.0)


def test_nothing_that_came_costs_nothing_that_can_be_told() -> None:
    nothing = LoadResult(ok=0, err=9, el=2.0, ev=0, lat50=-1.0, lat99=-1.0)
    sample = sample_of("single", PLAIN, "x", 1, nothing, 5_000_000)
    assert (sample.cpu_us, sample.p50_us, sample.p99_us) == (None, None, None)


def test_without_a_proxy_there_is_no_cost() -> None:
    assert sample_of("single", LATENCY, "direct", 1, RESULT, None).cpu_us is None


@pytest.mark.e2e
@pytest.mark.parametrize(("scenario", "asked"), [(BURST, 1), (HIDDEN, 10), (PLAIN, 0)])
def test_a_load_is_told_whether_to_ask_for_usage_or_to_miss_it(scenario: Scenario, asked: int) -> None:
    result = run_load([sys.executable, "-c", LOAD], scenario, 1.0)
    assert (result.ok, result.ev, result.lat99) == (asked, 7, -1.0)


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("program", "words"),
    [("raise SystemExit('connect: refused')", "plain: connect: refused"), ("print('no JSON')", "plain: ")],
)
def test_a_load_that_gave_up_says_why(program: str, words: str) -> None:
    with pytest.raises(LoadError, match=words):
        run_load([sys.executable, "-c", program], PLAIN, 1.0)


def test_scenarios_are_named() -> None:
    assert scenarios_named(["burst", "memory", "plain"]) == [PLAIN, BURST]


def test_streams_for_memory_have_begun_when_it_is_looked_at() -> None:
    options = memory_options(2000)
    assert options[options.index("-c") + 1] == "2000"
    assert float(options[options.index("-R") + 1]) == ramp_s(2000) == 4.0
