"""The metrics of several processes as those of one gateway."""

from collections.abc import Sequence
from typing import Any

import pytest
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from gateway.core.types import WorkerId
from gateway.telemetry.exposition import OPENMETRICS_MEDIA_TYPE, Exposition
from gateway.telemetry.labels import UpstreamErrorKind
from gateway.telemetry.merging import OF_THE_LIBRARY, RULES, Family, Together, family_of, packed, rule_of, unpacked
from gateway.telemetry.metrics import METRICS, Across, MetricType
from gateway.telemetry.recorder import Metrics
from gateway.telemetry.state import Readers
from tests.telemetry.telemetry_factories import CHAT, FakeState, a_remote_decision, a_worker, an_outcome
from tests.telemetry.test_exposition import all_readers

NO_OWN: tuple[Metric, ...] = ()


def exposed(metrics: Metrics, readers: Readers | None = None) -> list[Family]:
    """What a process sends to the one that asks it."""
    readers = readers or all_readers()
    return unpacked(packed(Exposition(metrics, readers, version="1", commit="c").families()))


def counted(requests: int, *, model: str = "llama", ttft_s: float = 0.5) -> Metrics:
    metrics = Metrics(slos=[CHAT])
    for _ in range(requests):
        metrics.record(a_remote_decision(), an_outcome(ttft_s=ttft_s), model_label=model)
    return metrics


def served(metrics: Metrics, *workers: str) -> list[Family]:
    return exposed(metrics, Readers(state=FakeState(fleet=[a_worker(worker) for worker in workers])))


def gauge(name: str, value: float, **labels: str) -> Family:
    metric = Metric(f"tidegate_{name}", "", "gauge")
    metric.add_sample(f"tidegate_{name}", labels, value)
    return family_of(metric)


def shown(together: Together) -> dict[str, Metric]:
    body, _ = together.render()
    return {family.name: family for family in text_string_to_metric_families(body.decode())}


def value(together: Together, name: str, **labels: str) -> float | None:
    found = [
        s.value for family in shown(together).values() for s in family.samples if (s.name, s.labels) == (name, labels)
    ]
    assert len(found) < 2
    return found[0] if found else None


def requests(together: Together, model: str = "llama") -> float | None:
    labels = {"model": model, "served_model": "llama", "path": "remote", "outcome": "ok"}
    return value(together, "tidegate_requests_total", **labels)


def merged_of(*parts: Sequence[Family]) -> Together:
    together = Together()
    together.heard({number: [*part] for number, part in enumerate(parts)}, NO_OWN)
    return together


# -- the rules -------------------------------------------------------------------------------------------------------


def test_every_metric_that_a_process_shows_has_a_rule() -> None:
    families = exposed(counted(1))
    assert {family.name for family in families} >= {spec.full_name.removesuffix("_total") for spec in METRICS}
    assert all(rule_of(family) in Across for family in families)


def test_counts_are_added_and_a_gauge_has_a_rule_of_its_own() -> None:
    assert {spec.across for spec in METRICS if spec.type is not MetricType.GAUGE} == {Across.SUM}
    assert set(OF_THE_LIBRARY).isdisjoint(spec.full_name for spec in METRICS)
    assert len(RULES) == len(METRICS) + len(OF_THE_LIBRARY)


def test_a_gauge_that_nobody_knows_has_no_rule() -> None:
    with pytest.raises(KeyError):
        rule_of(gauge("nonsense", 1.0))


@pytest.mark.parametrize(
    ("name", "labels", "expected"),
    [
        ("inflight_requests", {"model": "llama"}, 5.0),
        ("worker_inflight_tokens", {"worker": "w", "role": "both"}, 5.0),
        ("event_loop_lag_seconds", {"stat": "max"}, 3.0),
        ("build_info", {"version": "1", "commit": "c"}, 3.0),
        ("shared_up", {}, 2.0),
    ],
)
def test_gauges_become_one_by_their_rule(name: str, labels: dict[str, Any], expected: float) -> None:
    together = merged_of([gauge(name, 2.0, **labels)], [gauge(name, 3.0, **labels)])
    assert value(together, f"tidegate_{name}", **labels) == expected


# -- sums ------------------------------------------------------------------------------------------------------------


def test_counters_are_added_by_label() -> None:
    together = merged_of(exposed(counted(3)), exposed(counted(4)), exposed(counted(1, model="other")))
    assert requests(together) == 7
    assert requests(together, "other") == 1


def test_histograms_are_added_bucket_by_bucket() -> None:
    together = merged_of(exposed(counted(3, ttft_s=0.5)), exposed(counted(1, ttft_s=100.0)))
    labels = {"model": "llama", "path": "remote"}
    lines = [s for s in shown(together)["tidegate_ttft_seconds"].samples if s.labels.items() >= labels.items()]
    buckets = {s.labels["le"]: s.value for s in lines if s.name.endswith("_bucket")}
    assert buckets["0.5"] == 3
    assert buckets["+Inf"] == 4
    assert {s.name: s.value for s in lines if "le" not in s.labels} == {
        "tidegate_ttft_seconds_count": 4,
        "tidegate_ttft_seconds_sum": 101.5,
    }


def test_one_process_alone_is_shown_as_it_shows_itself() -> None:
    metrics, readers = counted(2), all_readers()
    exposition = Exposition(metrics, readers, version="1", commit="c")
    families = unpacked(packed(exposition.families()))
    own, _ = exposition.render()
    merged, _ = merged_of(families).render()
    ours = [line for line in own.decode().splitlines() if "tidegate_" in line]
    assert [line for line in merged.decode().splitlines() if "tidegate_" in line] == ours


def test_the_merged_exposition_is_valid_openmetrics() -> None:
    together = merged_of(exposed(counted(3)), exposed(counted(1, model="other")))
    body, content_type = together.render(OPENMETRICS_MEDIA_TYPE)
    assert content_type.startswith("application/openmetrics-text")
    names = [family.name for family in parse_openmetrics(body.decode())]
    assert len(names) == len(set(names)) > len(METRICS)


def test_what_the_asking_process_knows_is_shown_beside() -> None:
    together = Together()
    own = Metric("tidegate_processes", "", "gauge")
    own.add_sample("tidegate_processes", {}, 2.0)
    readers = Readers(state=FakeState())
    together.heard({0: exposed(Metrics(), readers), 1: exposed(Metrics(), readers)}, [own])
    assert value(together, "tidegate_processes") == 2


# -- processes that are gone, or silent ------------------------------------------------------------------------------


def test_a_sum_does_not_fall_when_a_process_dies_and_its_successor_begins_at_zero() -> None:
    together = Together()
    together.heard({0: exposed(counted(3)), 1: exposed(counted(4))}, NO_OWN)
    together.ended(1)
    together.heard({0: exposed(counted(3))}, NO_OWN)
    assert requests(together) == 7
    together.heard({0: exposed(counted(5)), 1: exposed(counted(1))}, NO_OWN)
    assert requests(together) == 10
    together.ended(1)
    together.heard({0: exposed(counted(5)), 1: exposed(Metrics())}, NO_OWN)
    assert requests(together) == 10


def test_the_gauges_of_a_dead_process_go() -> None:
    together = Together()
    one, two = ([gauge("inflight_requests", count, model="m")] for count in (2.0, 3.0))
    together.heard({0: one, 1: two}, NO_OWN)
    together.ended(1)
    together.heard({0: one}, NO_OWN)
    assert value(together, "tidegate_inflight_requests", model="m") == 2


def test_a_process_that_does_not_answer_counts_as_before_and_has_no_gauges() -> None:
    together = Together()
    one, two = ([gauge("inflight_requests", count, model="m")] for count in (2.0, 3.0))
    together.heard({0: [*exposed(counted(3)), *one], 1: [*exposed(counted(4)), *two]}, NO_OWN)
    together.heard({0: [*exposed(counted(3)), *one]}, NO_OWN)
    assert requests(together) == 7
    assert value(together, "tidegate_inflight_requests", model="m") == 2


def test_a_dead_process_that_was_never_asked_leaves_nothing() -> None:
    together = merged_of(exposed(counted(3)))
    together.ended(5)
    assert requests(together) == 3


def test_the_counts_of_a_dead_process_at_a_worker_go_with_the_worker() -> None:
    dying, living = counted(0), counted(0)
    for metrics, errors in ((dying, 2), (living, 1)):
        metrics.follow_workers([WorkerId("decode-0")])
        for _ in range(errors):
            metrics.upstream_error(WorkerId("decode-0"), UpstreamErrorKind.CONNECT)
    labels = {"worker": "decode-0", "kind": UpstreamErrorKind.CONNECT.value}
    together = Together()
    together.heard({0: served(living, "decode-0"), 1: served(dying, "decode-0")}, NO_OWN)
    together.ended(1)
    together.heard({0: served(living, "decode-0")}, NO_OWN)
    assert value(together, "tidegate_upstream_errors_total", **labels) == 3
    together.heard({0: served(living, "decode-1")}, NO_OWN)
    assert value(together, "tidegate_upstream_errors_total", **labels) is None
