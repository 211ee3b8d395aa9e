"""What one request, one retry and one failed leg do to the metrics."""

import pytest

from gateway.core import slo as core_slo
from gateway.core.types import Outcome, OutcomeKind, Path, RefusalKind, SloTarget, WorkerId
from gateway.telemetry import recorder
from gateway.telemetry.labels import MissedBound, UpstreamErrorKind
from gateway.telemetry.recorder import Metrics, missed_bound
from gateway.telemetry.state import Readers
from tests.telemetry.telemetry_factories import (
    BATCH,
    CHAT,
    FakeState,
    a_decision,
    a_failure,
    a_refusal,
    a_remote_decision,
    a_worker,
    an_outcome,
    label_values,
    scrape,
    value,
)


def test_a_request_counts_once_under_its_path_and_outcome() -> None:
    metrics = Metrics()
    metrics.record(a_decision(model="llama-70b"), an_outcome(), model_label="llama")
    shown = scrape(metrics)
    labels = {"model": "llama", "served_model": "llama-70b", "path": "local"}
    assert value(shown, "requests_total", **labels, outcome="ok") == 1
    assert value(shown, "requests_total", **labels, outcome="upstream_error") == 0
    assert value(shown, "path_total", path="local", reason="short_effective_isl") == 1


def test_latencies_of_a_stream_are_observed() -> None:
    metrics = Metrics()
    outcome = an_outcome(duration_s=4.0, ttft_s=0.5, tpot_s=0.03)
    metrics.record(a_remote_decision(), outcome, model_label="llama", decision_s=0.00015, prefill_leg_s=0.375)
    shown = scrape(metrics)
    assert value(shown, "request_duration_seconds_sum", model="llama", outcome="ok") == 4.0
    assert value(shown, "ttft_seconds_sum", model="llama", path="remote") == 0.5
    assert value(shown, "ttft_seconds_bucket", model="llama", path="remote", le="0.25") == 0
    assert value(shown, "ttft_seconds_bucket", model="llama", path="remote", le="0.5") == 1
    assert value(shown, "tpot_seconds_sum", model="llama", path="remote") == 0.03
    assert value(shown, "prefill_leg_seconds_sum", model="llama") == 0.375
    assert value(shown, "decision_seconds_bucket", le="0.0001") == 0
    assert value(shown, "decision_seconds_bucket", le="0.0002") == 1


def test_what_was_not_measured_is_not_observed() -> None:
    metrics = Metrics()
    metrics.record(a_decision(), a_failure(), model_label="llama")
    shown = scrape(metrics)
    for name in ("ttft_seconds", "tpot_seconds", "prefill_leg_seconds", "tokens"):
        assert shown[f"tidegate_{name}"].samples == []
    assert value(shown, "decision_seconds_count") == 0
    assert value(shown, "actual_cached_ratio_count") == 0


def test_requests_alike_may_differ_in_what_was_measured() -> None:
    metrics = Metrics()
    whole = an_outcome(ttft_s=None, tpot_s=None, input_tokens=None, cached_tokens=None, output_tokens=None)
    for outcome in (whole, an_outcome(), whole, an_outcome()):
        metrics.record(a_decision(), outcome, model_label="llama")
    shown = scrape(metrics)
    assert value(shown, "request_duration_seconds_count", model="llama", outcome="ok") == 4
    assert value(shown, "ttft_seconds_count", model="llama", path="local") == 2
    assert value(shown, "tpot_seconds_count", model="llama", path="local") == 2
    assert value(shown, "tokens_total", model="llama", type="cached") == 500


def test_requests_are_told_apart_by_every_label(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "MOST_KEPT", 3)
    metrics = Metrics()
    for _ in range(3):
        for decision in (a_decision(), a_remote_decision(), a_decision(model="llama-70b")):
            for kind in OutcomeKind:
                for label in ("llama", "alias"):
                    metrics.record(decision, an_outcome(kind=kind), model_label=label)
    shown = scrape(metrics)
    for kind in OutcomeKind:
        for label in ("llama", "alias"):
            for served, path in (("llama", "local"), ("llama", "remote"), ("llama-70b", "local")):
                labels = {"model": label, "served_model": served, "path": path, "outcome": kind}
                assert value(shown, "requests_total", **labels) == 3
    assert value(shown, "path_total", path="remote", reason="long_effective_isl") == 3 * len(OutcomeKind) * 2


def test_tokens_are_summed_by_type() -> None:
    metrics = Metrics()
    for _ in range(2):
        outcome = an_outcome(input_tokens=1000, cached_tokens=250, output_tokens=120)
        metrics.record(a_decision(), outcome, model_label="llama")
    shown = scrape(metrics)
    assert value(shown, "tokens_total", model="llama", type="input") == 2000
    assert value(shown, "tokens_total", model="llama", type="cached") == 500
    assert value(shown, "tokens_total", model="llama", type="output") == 240


def test_a_predicted_length_is_held_against_the_answers() -> None:
    metrics = Metrics()
    for tokens in (100, 400):
        metrics.record(a_decision(osl_predicted=True), an_outcome(output_tokens=tokens), model_label="llama")
    shown = scrape(metrics)
    assert value(shown, "output_length_ratio_sum", model="llama") == 2.5
    assert value(shown, "output_length_ratio_bucket", model="llama", le="0.5") == 1


@pytest.mark.parametrize(
    ("predicted", "outcome"),
    [
        (False, an_outcome()),
        (True, an_outcome(output_tokens=None)),
        (True, an_outcome(output_tokens=0)),
        (True, an_outcome(kind=OutcomeKind.CANCELLED)),
    ],
)
def test_a_mean_or_an_answer_that_did_not_come_whole_says_nothing_of_predictions(
    predicted: bool, outcome: Outcome
) -> None:
    metrics = Metrics()
    metrics.record(a_decision(osl_predicted=predicted), outcome, model_label="llama")
    assert scrape(metrics)["tidegate_output_length_ratio"].samples == []


@pytest.mark.parametrize(("path", "hit_ratio"), [(Path.LOCAL, 0.488), (Path.REMOTE, 0.25)])
def test_predicted_hit_is_that_of_the_worker_that_prefills(path: Path, hit_ratio: float) -> None:
    metrics = Metrics()
    metrics.record(a_decision(path=path), an_outcome(), model_label="llama")
    assert value(scrape(metrics), "predicted_prefix_hit_ratio_sum") == pytest.approx(hit_ratio)


def test_a_hit_beyond_the_estimated_prompt_counts_as_whole() -> None:
    metrics = Metrics()
    metrics.record(a_decision(decode_hit_tokens=1016), an_outcome(cached_tokens=0), model_label="llama")
    shown = scrape(metrics)
    assert value(shown, "predicted_prefix_hit_ratio_sum") == 1.0
    assert value(shown, "actual_cached_ratio_bucket", le="0.0") == 1


def test_both_workers_of_a_remote_request_are_selected() -> None:
    metrics = Metrics()
    metrics.record(a_remote_decision(), an_outcome(), model_label="llama")
    shown = scrape(metrics, Readers(state=FakeState(fleet=[a_worker("prefill-0"), a_worker("decode-0")])))
    assert value(shown, "worker_selected_total", worker="prefill-0", role="prefill", policy="isl") == 1
    assert value(shown, "worker_selected_total", worker="decode-0", role="decode", policy="isl") == 1


def test_a_retry_counts_the_choice_that_was_given_up() -> None:
    metrics = Metrics()
    metrics.retried(a_remote_decision(), UpstreamErrorKind.CONNECT, decision_s=0.001)
    metrics.record(a_decision(attempt=2), an_outcome(), model_label="llama", decision_s=0.001)
    shown = scrape(metrics)
    assert value(shown, "retries_total", cause="connect") == 1
    assert value(shown, "path_total", path="remote", reason="long_effective_isl") == 1
    assert value(shown, "path_total", path="local", reason="short_effective_isl") == 1
    assert value(shown, "decision_seconds_count") == 2
    ended = [sample.value for sample in shown["tidegate_requests"].samples]
    assert sum(ended) == 1


def test_a_refusal_counts_by_reason_without_a_path() -> None:
    metrics = Metrics()
    metrics.record(a_refusal(), a_failure(OutcomeKind.REFUSED, status=503), model_label="llama")
    shown = scrape(metrics)
    assert value(shown, "refusals_total", reason="no_decode_worker") == 1
    labels = {"model": "other", "served_model": "none", "path": "none", "outcome": "refused"}
    assert value(shown, "requests_total", **labels) == 1
    assert value(shown, "request_duration_seconds_count", model="other", outcome="refused") == 1


def test_a_request_that_never_reached_the_core_counts_too() -> None:
    metrics = Metrics()
    metrics.record(None, a_failure(OutcomeKind.CLIENT_ERROR, status=400), model_label="")
    labels = {"model": "other", "served_model": "none", "path": "none", "outcome": "client_error"}
    assert value(scrape(metrics), "requests_total", **labels) == 1


def test_errors_refusals_retries_and_slos_start_at_zero() -> None:
    shown = scrape(Metrics(slos=[CHAT]), Readers(state=FakeState(fleet=[a_worker("decode-0")])))
    for refusal in RefusalKind:
        assert value(shown, "refusals_total", reason=refusal) == 0
    for kind in UpstreamErrorKind:
        assert value(shown, "retries_total", cause=kind) == 0
        assert value(shown, "upstream_errors_total", worker="decode-0", kind=kind) == 0
    for bound in MissedBound:
        assert value(shown, "slo_missed_total", slo="chat", path="remote", bound=bound) == 0
    assert value(shown, "slo_attained_total", slo="chat", path="local") == 0


def test_all_outcomes_of_a_model_start_at_zero_even_where_a_handle_came_first() -> None:
    metrics = Metrics()
    metrics.itl("llama")
    metrics.record(a_decision(), an_outcome(), model_label="llama")
    shown = scrape(metrics)
    assert label_values(shown, "requests", "outcome") == set(OutcomeKind)


def test_handles_update_their_model() -> None:
    metrics = Metrics()
    gaps, inflight = metrics.itl("llama"), metrics.inflight("llama")
    gaps.observe(0.02)
    gaps.observe(0.03)
    inflight.inc()
    inflight.inc()
    inflight.dec()
    shown = scrape(metrics)
    assert value(shown, "itl_seconds_count", model="llama") == 2
    assert value(shown, "itl_seconds_bucket", model="llama", le="0.025") == 1
    assert value(shown, "inflight_requests", model="llama") == 1


def test_models_past_the_cap_share_a_gauge() -> None:
    metrics = Metrics(model_cap=1)
    for name in ("a", "b", "c", "b", "a"):
        metrics.inflight(name).inc()
    metrics.inflight("c").dec()
    shown = scrape(metrics)
    assert value(shown, "inflight_requests", model="a") == 2
    assert value(shown, "inflight_requests", model="other") == 2


def test_a_class_that_a_reload_brings_starts_at_zero_and_one_that_it_takes_keeps_its_counts() -> None:
    metrics = Metrics()
    metrics.record(a_decision(), an_outcome(), model_label="llama")
    shown = scrape(metrics, Readers(state=FakeState(targets=[BATCH])))
    assert value(shown, "slo_attained_total", slo="batch", path="remote") == 0
    assert value(shown, "slo_attained_total", slo="chat", path="local") == 1


def test_models_past_the_cap_count_as_other() -> None:
    metrics = Metrics(model_cap=2)
    for name in ("a", "b", "c", "d", "a"):
        metrics.record(a_decision(model="a"), an_outcome(), model_label=name)
    shown = scrape(metrics)
    assert label_values(shown, "requests", "model") == {"a", "b", "other"}
    ok = {"served_model": "a", "path": "local", "outcome": "ok"}
    assert value(shown, "requests_total", model="a", **ok) == 2
    assert value(shown, "requests_total", model="other", **ok) == 2


def test_refused_models_take_no_room_under_the_cap() -> None:
    metrics = Metrics(model_cap=1)
    refused = a_failure(OutcomeKind.REFUSED, status=404)
    for number in range(50):
        metrics.record(a_refusal(RefusalKind.MODEL_NOT_FOUND), refused, model_label=f"guess-{number}")
    metrics.record(a_decision(), an_outcome(), model_label="llama")
    metrics.record(a_refusal(), refused, model_label="llama")
    shown = scrape(metrics)
    assert label_values(shown, "requests", "model") == {"llama", "other"}
    assert value(shown, "request_duration_seconds_count", model="llama", outcome="refused") == 1


def test_series_of_a_worker_that_left_are_dropped_and_begin_anew() -> None:
    state = FakeState(fleet=[a_worker("decode-0"), a_worker("decode-1")])
    metrics = Metrics()
    for worker in ("decode-0", "decode-1"):
        metrics.record(a_decision(decode_worker=WorkerId(worker)), an_outcome(), model_label="llama")
        metrics.upstream_error(WorkerId(worker), UpstreamErrorKind.TIMEOUT)
    assert label_values(scrape(metrics, Readers(state=state)), "worker_selected", "worker") == {
        "decode-0",
        "decode-1",
    }
    state.fleet = [a_worker("decode-1")]
    shown = scrape(metrics, Readers(state=state))
    assert label_values(shown, "worker_selected", "worker") == {"decode-1"}
    assert label_values(shown, "upstream_errors", "worker") == {"decode-1"}
    state.fleet = [a_worker("decode-0"), a_worker("decode-1")]
    shown = scrape(metrics, Readers(state=state))
    assert value(shown, "upstream_errors_total", worker="decode-0", kind="timeout") == 0
    assert value(shown, "upstream_errors_total", worker="decode-1", kind="timeout") == 1
    metrics.record(a_decision(decode_worker=WorkerId("decode-0")), an_outcome(), model_label="llama")
    shown = scrape(metrics, Readers(state=state))
    assert value(shown, "worker_selected_total", worker="decode-0", role="decode", policy="isl") == 1
    assert value(shown, "worker_selected_total", worker="decode-1", role="decode", policy="isl") == 1


def test_slo_counts_what_was_judged() -> None:
    metrics = Metrics()
    for attained in (True, True, False, None):
        metrics.record(a_decision(), an_outcome(ttft_s=2.0, attained=attained), model_label="llama")
    shown = scrape(metrics)
    assert value(shown, "slo_attained_total", slo="chat", path="local") == 2
    assert value(shown, "slo_missed_total", slo="chat", path="local", bound="ttft") == 1


BOTH = SloTarget(name="both", ttft_s=1.0, tpot_s=0.05)


@pytest.mark.parametrize(
    ("kind", "duration_s", "ttft_s", "tpot_s", "bound"),
    [
        (OutcomeKind.OK, 9.0, 1.5, 0.04, MissedBound.TTFT),
        (OutcomeKind.OK, 9.0, 0.5, 0.06, MissedBound.TPOT),
        (OutcomeKind.OK, 9.0, 1.5, 0.06, MissedBound.BOTH),
        (OutcomeKind.OK, 9.0, None, None, MissedBound.BOTH),
        (OutcomeKind.CANCELLED, 2.0, None, None, MissedBound.TTFT),
        (OutcomeKind.UPSTREAM_ERROR, 0.1, None, None, MissedBound.FAILED),
        (OutcomeKind.TIMEOUT, 9.0, 1.5, 0.06, MissedBound.FAILED),
    ],
)
def test_missed_bound_is_what_the_core_judged(
    kind: OutcomeKind, duration_s: float, ttft_s: float | None, tpot_s: float | None, bound: MissedBound
) -> None:
    attained = core_slo.attained(BOTH, kind=kind, duration_s=duration_s, ttft_s=ttft_s, tpot_s=tpot_s, output_tokens=10)
    outcome = an_outcome(kind=kind, duration_s=duration_s, ttft_s=ttft_s, tpot_s=tpot_s, attained=attained)
    assert outcome.attained is False
    assert missed_bound(BOTH, outcome) is bound
