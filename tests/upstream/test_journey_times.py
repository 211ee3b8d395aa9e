"""What is measured of a request, on a clock that the test moves."""

import json

import pytest

from gateway.core.events import FirstToken
from gateway.core.types import OutcomeKind
from gateway.upstream.errors import ErrorKind
from tests.upstream.journey_lab import (
    DONE,
    JSON_HEAD,
    STARTED_AT_S,
    Call,
    Lab,
    chat_body,
    chunk,
    prefill_answer,
    usage_chunk,
    whole_answer,
)

SLO_TTFT_S = 2.0
SLO_TPOT_S = 0.0625
SLO_HEADERS = [(b"x-slo-ttft-ms", b"2000"), (b"x-slo-tpot-ms", b"62.5")]


def stream(lab: Lab, call: Call, *, ttft_s: float, gaps_s: list[float], tail: bytes = DONE) -> None:
    """A stream whose head comes at once, its first content after `ttft_s`, the others after their gaps."""
    lab.leg.head().send(b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n')
    lab.clock.advance(ttft_s)
    lab.leg.send(chunk("a"))
    for gap_s in gaps_s:
        lab.clock.advance(gap_s)
        lab.leg.send(chunk("b"))
    lab.leg.send(tail)
    lab.clock.advance(0.5)
    lab.leg.end()


def test_the_first_token_counts_from_the_arrival_and_a_role_alone_is_none() -> None:
    lab = Lab.local()
    stream(lab, lab.call(), ttft_s=1.25, gaps_s=[0.03125, 0.03125])
    outcome = lab.outcome()
    (first,) = [event for event in lab.core.events if isinstance(event, FirstToken)]
    assert first.at_s == STARTED_AT_S + 1.25
    assert outcome.ttft_s == 1.25
    assert outcome.tpot_s == 0.03125
    assert outcome.duration_s == 1.8125
    assert outcome.output_tokens is None
    assert outcome.attained is True
    assert lab.count("ttft_seconds_sum") == 1.25
    assert lab.count("tpot_seconds_sum") == 0.03125
    assert lab.count("itl_seconds_count") == 2
    assert lab.count("itl_seconds_sum") == 0.0625
    assert lab.count("slo_attained_total") == 1


def test_the_pace_is_by_reported_tokens_where_an_event_holds_several() -> None:
    lab = Lab.local()
    stream(lab, lab.call(), ttft_s=1.0, gaps_s=[0.5, 0.5], tail=usage_chunk(100, 41, 64) + DONE)
    outcome = lab.outcome()
    assert outcome.tpot_s == 1.0 / 40
    assert (outcome.input_tokens, outcome.cached_tokens, outcome.output_tokens) == (100, 64, 41)
    assert lab.count("tokens_total", type="input") == 100
    assert lab.count("tokens_total", type="cached") == 64
    assert lab.count("tokens_total", type="output") == 41
    assert lab.count("actual_cached_ratio_sum") == 0.64


def test_a_single_token_has_no_pace() -> None:
    lab = Lab.local()
    stream(lab, lab.call(), ttft_s=1.0, gaps_s=[])
    assert lab.outcome().tpot_s is None
    assert lab.outcome().attained is True
    assert lab.count("tpot_seconds_count") == 0


@pytest.mark.parametrize(
    ("ttft_s", "gap_s", "bound"),
    [
        (SLO_TTFT_S, SLO_TPOT_S, None),
        (SLO_TTFT_S + 0.25, SLO_TPOT_S, "ttft"),
        (SLO_TTFT_S, SLO_TPOT_S + 0.25, "tpot"),
        (SLO_TTFT_S + 0.25, SLO_TPOT_S + 0.25, "both"),
    ],
)
def test_a_stream_is_judged_on_both_bounds(ttft_s: float, gap_s: float, bound: str | None) -> None:
    lab = Lab.local()
    stream(lab, lab.call(headers=SLO_HEADERS), ttft_s=ttft_s, gaps_s=[gap_s])
    assert lab.outcome().attained is (bound is None)
    assert lab.count("slo_missed_total") == (0 if bound is None else 1)
    if bound is not None:
        assert lab.count("slo_missed_total", bound=bound) == 1


def test_a_retry_does_not_restart_the_clock() -> None:
    lab = Lab.local()
    call = lab.call()
    lab.clock.advance(1.5)
    lab.leg.fail(ErrorKind.FIRST_BYTE_TIMEOUT)
    stream(lab, call, ttft_s=0.75, gaps_s=[])
    assert lab.outcome().ttft_s == 2.25
    assert lab.outcome().attained is False


def test_the_prefill_leg_is_a_part_of_the_time_to_the_first_token() -> None:
    lab = Lab()
    call = lab.call()
    lab.clock.advance(1.0)
    lab.leg.answer(200, prefill_answer())
    stream(lab, call, ttft_s=0.5, gaps_s=[])
    assert lab.outcome().ttft_s == 1.5
    assert lab.count("prefill_leg_seconds_sum") == 1.0
    assert lab.count("ttft_seconds_sum", path="remote") == 1.5


@pytest.mark.parametrize(("duration_s", "attained"), [(2.25, True), (2.5, False)])
def test_a_whole_answer_is_held_to_the_sum_of_both_budgets(duration_s: float, attained: bool) -> None:
    lab = Lab.local()
    lab.call(chat_body(stream=False))
    lab.clock.advance(duration_s)
    lab.leg.answer(200, whole_answer(completion=11))  # 2 s + 10 x 40 ms
    outcome = lab.outcome()
    assert (outcome.ttft_s, outcome.tpot_s) == (None, None)
    assert outcome.duration_s == duration_s
    assert outcome.attained is attained
    assert lab.count("ttft_seconds_count") == 0
    if not attained:
        assert lab.count("slo_missed_total", bound="both") == 1


def test_a_whole_answer_that_is_no_json_still_passes_and_is_held_to_the_first_token() -> None:
    lab = Lab.local()
    call = lab.call(chat_body(stream=False))
    lab.clock.advance(2.25)
    lab.leg.answer(200, b"<html>")
    assert call.sink.body == b"<html>"
    assert lab.outcome().output_tokens is None
    assert lab.outcome().attained is False


def test_a_whole_answer_of_exactly_the_bound_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.upstream.watch.MAX_WHOLE_ANSWER_BYTES", len(whole_answer()))
    lab = Lab.local()
    lab.call(chat_body(stream=False))
    lab.leg.answer(200, whole_answer(completion=5))
    assert lab.outcome().output_tokens == 5


def test_a_whole_answer_too_large_to_read_passes_without_its_usage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.upstream.watch.MAX_WHOLE_ANSWER_BYTES", 100)
    lab = Lab.local()
    call = lab.call(chat_body(stream=False))
    body = whole_answer("x" * 300)
    lab.leg.head(200, JSON_HEAD).send(body[:150], body[150:250], body[250:]).end()
    assert call.sink.body == body
    assert lab.outcome().output_tokens is None
    assert lab.outcome().kind is OutcomeKind.OK


@pytest.mark.parametrize(("waited_s", "attained"), [(1.0, None), (2.25, False)])
def test_a_client_that_leaves_before_the_first_token_missed_it_only_where_it_was_late(
    waited_s: float, attained: bool | None
) -> None:
    lab = Lab.local()
    call = lab.call()
    lab.clock.advance(waited_s)
    call.journey.client_gone()
    assert lab.outcome().attained is attained
    assert lab.outcome().duration_s == waited_s


def test_a_client_that_leaves_inside_the_stream_is_not_judged() -> None:
    lab = Lab.local()
    call = lab.call()
    lab.clock.advance(3.0)
    lab.leg.head().send(chunk("a"))
    call.journey.client_gone()
    assert lab.outcome().ttft_s == 3.0
    assert lab.outcome().attained is None


def test_the_in_flight_gauge_rises_with_the_dispatch_and_falls_with_the_end() -> None:
    lab = Lab.local()
    calls = [lab.call(request_id=str(number)) for number in range(3)]
    assert lab.count("inflight_requests", model="llama") == 3
    calls[0].journey.client_gone()
    assert lab.count("inflight_requests", model="llama") == 2
    for leg in lab.pool.legs[1:]:
        leg.stream(chunk("a"), DONE)
    assert lab.count("inflight_requests", model="llama") == 0


def test_the_time_of_every_decision_is_told_once() -> None:
    lab = Lab.local()
    lab.core.decision_takes_s = 0.125
    lab.call()
    lab.core.decision_takes_s = 0.25
    lab.leg.fail(ErrorKind.CONNECT_REFUSED)
    lab.leg.stream(chunk("a"), DONE)
    assert lab.count("decision_seconds_count") == 2
    assert lab.count("decision_seconds_sum") == 0.375


def test_a_refused_retry_leaves_the_time_of_the_decision_that_stands() -> None:
    lab = Lab.local(decode=1)
    lab.core.decision_takes_s = 0.125
    lab.call()
    lab.core.decision_takes_s = 0.25
    lab.leg.fail(ErrorKind.CONNECT_REFUSED)
    assert lab.count("decision_seconds_count") == 1
    assert lab.count("decision_seconds_sum") == 0.125


def test_a_refusal_has_its_time_too() -> None:
    lab = Lab.local()
    lab.core.decision_takes_s = 0.125
    lab.call(json.dumps({"model": "nobody", "messages": [{"role": "user", "content": "hi"}]}).encode())
    assert lab.outcome().duration_s == 0.125
    assert lab.count("decision_seconds_sum") == 0.125
