import json
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.experiment.chrome import Event, lanes_of, trace_events, write_trace
from loadtest.experiment.run import watch_cell
from loadtest.experiment.timeline import Span, SpanKind, Timeline
from tests.loadtest.experiment.experiment_lab import first_run


@pytest.fixture(scope="module")
def timeline() -> Timeline:
    return watch_cell(first_run())[1]


def span(began_s: int, length_s: int, worker: int) -> Span:
    return Span(
        worker=worker, kind=SpanKind.DECODE, request_id="r", began_s=float(began_s), ended_s=float(began_s + length_s),
        input_tokens=1, cached_tokens=0, output_tokens=1,
    )  # fmt: skip


SPANS = st.lists(st.builds(span, st.integers(0, 20), st.integers(1, 9), st.integers(0, 1)), max_size=30)


@given(spans=SPANS)
def test_spans_of_one_lane_do_not_overlap_and_no_lane_is_wasted(spans: list[Span]) -> None:
    lanes = lanes_of(spans)
    for worker in (0, 1):
        own = [(one, lane) for one, lane in zip(spans, lanes, strict=True) if one.worker == worker]
        for lane in {lane for _, lane in own}:
            here = sorted((one.began_s, one.ended_s) for one, its in own if its == lane)
            assert all(before[1] <= after[0] for before, after in pairwise(here))
        at_once = [sum(one.began_s <= t < one.ended_s for one, _ in own) for t in range(30)]
        assert max((lane for _, lane in own), default=0) == max(at_once)


def slice_at(slices: list[Event], arrow: Event) -> Event:
    (found,) = [
        one
        for one in slices
        if (one["pid"], one["tid"]) == (arrow["pid"], arrow["tid"])
        and one["ts"] <= arrow["ts"] < one["ts"] + one["dur"]
    ]
    return found


def test_every_transfer_is_an_arrow_between_the_spans_of_its_request(timeline: Timeline) -> None:
    events = list(trace_events(timeline))
    slices = [event for event in events if event["ph"] == "X"]
    starts = {event["id"]: event for event in events if event["ph"] == "s"}
    ends = {event["id"]: event for event in events if event["ph"] == "f"}
    assert len(starts) == len(ends) == 30
    for request, start in starts.items():
        assert slice_at(slices, start)["name"] == f"prefill {request}"
        assert slice_at(slices, ends[request])["name"] == f"transfer {request}"
        assert start["ts"] <= ends[request]["ts"]


def test_a_process_is_a_worker_and_its_gauges_are_counters(timeline: Timeline) -> None:
    events = list(trace_events(timeline))
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert names == {0: "prefill-0", 1: "decode-0"}
    counters = [event for event in events if event["ph"] == "C" and event["name"] == "requests" and event["pid"] == 1]
    assert [event["args"]["batch"] for event in counters] == timeline.series[1].running
    assert counters[0]["ts"] == 1e6


def test_the_file_is_json_of_the_trace_event_format(tmp_path: Path, timeline: Timeline) -> None:
    write_trace(tmp_path / "run.trace.json", timeline)
    content = json.loads((tmp_path / "run.trace.json").read_bytes())
    assert content["displayTimeUnit"] == "ms"
    assert {event["ph"] for event in content["traceEvents"]} == {"M", "C", "X", "s", "f"}
