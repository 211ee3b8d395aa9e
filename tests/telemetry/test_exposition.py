"""The answer to a scrape: parseable, complete, and free of names that are not ours."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics

from gateway.core.health import HealthState
from gateway.core.types import Role
from gateway.telemetry.exposition import Exposition
from gateway.telemetry.labels import UpstreamErrorKind
from gateway.telemetry.loop_lag import LoopLag
from gateway.telemetry.metrics import METRICS, MetricType
from gateway.telemetry.recorder import Metrics
from gateway.telemetry.state import Readers
from tests.telemetry.telemetry_factories import (
    CHAT,
    FakeState,
    a_remote_decision,
    a_worker,
    an_outcome,
    scrape,
    value,
)

OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"


class FakePool:
    def connections(self) -> Mapping[tuple[str, str], int]:
        return {("decode-0", "idle"): 4, ("decode-0", "active"): 2, ("gone", "idle"): 1}


class FakeLog:
    written = 5
    dropped = 2


class FakeLag:
    def __init__(self, lag: LoopLag | None) -> None:
        self.lag = lag

    def take(self) -> LoopLag | None:
        return self.lag


class FakeLoads:
    """What `LoadStats` is, seen from a scrape."""

    exchanges, failures, replicas = 40, 2, 3


class FakeProcesses:
    """What the parent of several processes knows of them."""

    answering, restarts, misses = 2, 1, 4


@dataclass
class FakeShared:
    """What `SharedStats` is, seen from a scrape."""

    is_up: bool = True
    queued: int = 3
    answered: int = 5
    timed_out: int = 1
    refused: int = 2
    sent: int = 40
    dropped: int = 4
    downs: int = 6
    moved: int = 7
    call_counts: Sequence[int] = (2, 3, 0, 0, 0, 0, 0, 0, 0, 1)
    call_seconds: float = 1.5


def busy_metrics() -> Metrics:
    metrics = Metrics(slos=[CHAT])
    routed = a_remote_decision(osl_predicted=True)
    metrics.record(routed, an_outcome(), model_label="llama", decision_s=1e-4, prefill_leg_s=0.2)
    metrics.itl("llama").observe(0.02)
    metrics.inflight("llama").inc()
    return metrics


def all_readers() -> Readers:
    fleet = [a_worker("prefill-0", role=Role.PREFILL), a_worker("decode-0")]
    state = FakeState(fleet=fleet, calibration={"llama": 4.1}, burn={("chat", "5m"): 0.5})
    lag = FakeLag(LoopLag(ewma_s=0.001, max_s=0.25))
    return Readers(
        state=state,
        pool=FakePool(),
        decision_log=FakeLog(),
        loop_lag=lag,
        shared=FakeShared,
        loads=FakeLoads(),
        processes=FakeProcesses(),
    )


def render(metrics: Metrics, readers: Readers, accept: str = "") -> tuple[str, str]:
    body, content_type = Exposition(metrics, readers, version="1.2.3", commit="abc").render(accept)
    return body.decode(), content_type


def test_every_declared_metric_appears_once_with_its_help() -> None:
    text, _ = render(Metrics(), Readers(state=FakeState()))
    helps = re.findall(r"^# HELP (tidegate_\S+) (.+)$", text, re.MULTILINE)
    assert helps == [(spec.full_name, spec.help) for spec in METRICS]
    types = re.findall(r"^# TYPE (tidegate_\S+) (.+)$", text, re.MULTILINE)
    assert types == [(spec.full_name, spec.type) for spec in METRICS]


def test_every_declared_metric_has_series_once_everything_runs() -> None:
    shown = scrape(busy_metrics(), all_readers())
    without = [spec.name for spec in METRICS if not shown[spec.full_name.removesuffix("_total")].samples]
    assert without == []


def test_series_carry_exactly_the_declared_labels() -> None:
    shown = scrape(busy_metrics(), all_readers())
    for spec in METRICS:
        for sample in shown[spec.full_name.removesuffix("_total")].samples:
            assert set(sample.labels) - {"le"} == set(spec.labels), sample


def test_openmetrics_is_given_to_those_who_accept_it_and_is_valid() -> None:
    text, content_type = render(busy_metrics(), all_readers(), OPENMETRICS)
    assert content_type.startswith("application/openmetrics-text; version=1.0.0")
    assert text.endswith("# EOF\n")
    names = [family.name for family in parse_openmetrics(text)]
    assert len(names) == len(set(names))
    assert {spec.full_name.removesuffix("_total") for spec in METRICS} <= set(names)


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ("", "text/plain; version=0.0.4"),
        ("*/*", "text/plain; version=0.0.4"),
        ("text/plain;version=1.x", "text/plain; version=0.0.4"),
        ("text/html, application/openmetrics-text;version=1.x;q=0.5", "application/openmetrics-text"),
    ],
)
def test_any_accept_header_gets_an_answer(accept: str, expected: str) -> None:
    _, content_type = render(Metrics(), Readers(state=FakeState()), accept)
    assert content_type.startswith(expected)


def test_names_cannot_be_taken_for_an_engines() -> None:
    text, _ = render(busy_metrics(), all_readers())
    names = set(re.findall(r"^# TYPE (\S+)", text, re.MULTILINE))
    assert not [name for name in names if ":" in name]
    assert all(name.startswith(("tidegate_", "process_", "python_")) for name in names)


def test_only_counters_are_called_total_and_times_are_in_seconds() -> None:
    for spec in METRICS:
        assert spec.name.endswith("_total") == (spec.type is MetricType.COUNTER)
        assert bool(spec.buckets) == (spec.type is MetricType.HISTOGRAM)
        assert "_ms" not in spec.name


def test_process_and_platform_are_shown_too() -> None:
    shown = scrape(Metrics())
    assert {"process_cpu_seconds", "python_info", "python_gc_collections"} <= set(shown)


def test_worker_gauges_show_the_readers_view() -> None:
    shown = scrape(Metrics(), all_readers())
    labels = {"worker": "decode-0", "role": "decode"}
    assert value(shown, "worker_inflight_requests", **labels) == 3
    assert value(shown, "worker_inflight_tokens", **labels) == 4096
    assert value(shown, "worker_queue_depth", **labels) == 2
    assert value(shown, "worker_kv_used_ratio", **labels) == 0.25
    assert value(shown, "worker_sample_age_seconds", **labels) == 0.5


def test_a_missing_signal_has_no_series() -> None:
    fleet = [a_worker("decode-0", queue_depth=None, kv_used_ratio=None, sample_age_s=None)]
    shown = scrape(Metrics(), Readers(state=FakeState(fleet=fleet)))
    for name in ("worker_queue_depth", "worker_kv_used_ratio", "worker_sample_age_seconds"):
        assert shown[f"tidegate_{name}"].samples == []
    assert value(shown, "worker_inflight_requests", worker="decode-0", role="decode") == 3


@pytest.mark.parametrize(
    ("state", "draining", "number", "label"),
    [
        (HealthState.CLOSED, False, 0, "closed"),
        (HealthState.HALF_OPEN, False, 1, "half_open"),
        (HealthState.OPEN, False, 2, "open"),
        (HealthState.DOWN, False, 3, "down"),
        (HealthState.DOWN, True, 4, "draining"),
    ],
)
def test_worker_state_is_a_number_per_worker_and_a_count_per_role(
    state: HealthState, draining: bool, number: int, label: str
) -> None:
    fleet = [a_worker("decode-0", state=state, draining=draining)]
    shown = scrape(Metrics(), Readers(state=FakeState(fleet=fleet)))
    assert value(shown, "worker_breaker_state", worker="decode-0", role="decode") == number
    counts = {
        (sample.labels["role"], sample.labels["state"]): sample.value for sample in shown["tidegate_workers"].samples
    }
    assert counts.pop(("decode", label)) == 1
    assert set(counts.values()) == {0}


def test_a_worker_with_prices_shows_how_far_it_is_from_them_and_one_without_does_not() -> None:
    priced = a_worker("decode-0", prefill_price_ratio=1.1, decode_price_ratio=0.9)
    plain = a_worker("decode-1", prefill_price_ratio=None, decode_price_ratio=None)
    shown = scrape(Metrics(), Readers(state=FakeState(fleet=[priced, plain])))
    samples = shown["tidegate_worker_price_ratio"].samples
    assert {(s.labels["worker"], s.labels["phase"]): s.value for s in samples} == {
        ("decode-0", "prefill"): 1.1,
        ("decode-0", "decode"): 0.9,
    }


def test_slo_bounds_and_objective_are_those_of_the_moment() -> None:
    state = FakeState()
    metrics, readers = Metrics(slos=state.targets), Readers(state=state)
    shown = scrape(metrics, readers)
    assert value(shown, "slo_objective") == 0.95
    bounds = {(s.labels["slo"], s.labels["bound"]): s.value for s in shown["tidegate_slo_bound_seconds"].samples}
    assert bounds == {("chat", "ttft"): 1.7, ("chat", "tpot"): 0.055}  # batch has none
    state.targets, state.objective = [replace(CHAT, ttft_s=None, tpot_s=0.1)], 0.9
    shown = scrape(metrics, readers)
    assert value(shown, "slo_objective") == 0.9
    bounds = {(s.labels["slo"], s.labels["bound"]): s.value for s in shown["tidegate_slo_bound_seconds"].samples}
    assert bounds == {("chat", "tpot"): 0.1}


def test_core_and_shell_gauges_are_read_at_the_scrape() -> None:
    shown = scrape(Metrics(), all_readers())
    assert value(shown, "prefix_index_blocks") == 42
    assert value(shown, "bytes_per_token", model="llama") == 4.1
    assert value(shown, "slo_burn_rate", slo="chat", window="5m") == 0.5
    assert value(shown, "policy_info", policy="isl", version="7") == 1
    assert value(shown, "build_info", version="1.2.3", commit="abc") == 1
    assert value(shown, "decision_log_records_total") == 5
    assert value(shown, "decision_log_dropped_total") == 2
    assert value(shown, "event_loop_lag_seconds", stat="ewma") == 0.001
    assert value(shown, "event_loop_lag_seconds", stat="max") == 0.25


def test_connections_of_a_worker_that_left_are_not_shown() -> None:
    samples = scrape(Metrics(), all_readers())["tidegate_upstream_connections"].samples
    assert {(s.labels["worker"], s.labels["state"]): s.value for s in samples} == {
        ("decode-0", "idle"): 4,
        ("decode-0", "active"): 2,
    }


def test_lag_has_no_series_before_its_first_sample() -> None:
    readers = Readers(state=FakeState(), loop_lag=FakeLag(None))
    assert scrape(Metrics(), readers)["tidegate_event_loop_lag_seconds"].samples == []


def test_a_scrape_does_not_change_the_counts() -> None:
    metrics, readers = busy_metrics(), all_readers()
    metrics.upstream_error(a_worker("decode-0").worker_id, UpstreamErrorKind.BROKEN)
    first, second = (
        {name: family.samples for name, family in scrape(metrics, readers).items() if "tidegate" in name}
        for _ in range(2)
    )
    assert first == second


def test_label_values_from_clients_are_escaped() -> None:
    metrics = Metrics()
    hostile = 'a"} 1\ntidegate_fake 2\\'
    metrics.record(a_remote_decision(model=hostile), an_outcome(), model_label=hostile)
    shown = scrape(metrics)
    labels = {"model": hostile, "served_model": hostile, "path": "remote", "outcome": "ok"}
    assert value(shown, "requests_total", **labels) == 1
    assert "tidegate_fake" not in shown


def test_the_shared_pins_are_shown_where_there_are_any() -> None:
    shown = scrape(Metrics(), all_readers())
    assert value(shown, "shared_up") == 1
    calls = {one.labels["outcome"]: one.value for one in shown["tidegate_shared_calls"].samples}
    assert calls == {"answered": 5, "timed_out": 1, "refused": 2}
    took = {one.labels.get("le", one.name): one.value for one in shown["tidegate_shared_call_seconds"].samples}
    assert (took["0.0005"], took["0.001"], took["0.2"], took["+Inf"]) == (2, 5, 5, 6)
    assert took["tidegate_shared_call_seconds_sum"] == 1.5
    alone = scrape(Metrics(), Readers(state=FakeState()))
    shared = [name for name in alone if name.startswith("tidegate_shared_")]
    assert len(shared) == 11
    told = [value(shown, f"shared_{name}") for name in ("loads_total", "load_failures_total", "replicas")]
    assert told == [40, 2, 3]
    assert [name for name in shared if alone[name].samples] == []
