"""The metrics reference, made from the declarations.

The rule of this module: `python -m gateway.telemetry.reference > docs/reference/metrics.md` writes the page; a test
holds the two equal.
"""

import sys
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Final

from gateway.core.types import OutcomeKind, Path, Reason, RefusalKind, Role
from gateway.telemetry.labels import (
    MODEL_CAP,
    NO_PATH,
    OTHER,
    LagStat,
    Leg,
    MissedBound,
    SharedOutcome,
    TokenType,
    UpstreamErrorKind,
)
from gateway.telemetry.metrics import METRICS
from gateway.telemetry.state import BREAKER_NUMBER
from policy_store.faults import BundleFault

INTRODUCTION: Final = f"""# Metrics

<!-- Written by `python -m gateway.telemetry.reference`; edit `gateway/telemetry/metrics.py` instead. -->

`GET /metrics` answers in the Prometheus text format, or in OpenMetrics 1.0 where the client accepts it. Beside the
metrics below it shows the usual `process_*` and `python_*` ones. Each replica has its own port and its own counts.

- With `server.workers` above 1 whichever process is asked shows the numbers of all of them: the last column says
  what they come to, label by label. What a process had counted stays when it dies, up to the scrape before, so a sum
  never falls. `process_*` are of these processes without their parent: sums, but for the youngest start and the
  smallest limit of descriptors.
- Seconds and tokens are base units. A value that is not known has no series; it is never shown as 0.
- `model` takes the first {MODEL_CAP} distinct names that were routed, then `{OTHER}`. A request that was not routed
  counts under a name already known, else under `{OTHER}`.
- Counters of refusals, of policies too, of retries, upstream errors, SLOs, and of requests by outcome once a model is
  routed, start at 0: `rate()` and `increase()` see the first error.
- The series of a worker go when the worker leaves the fleet.
- Histogram boundaries are fixed. Whether a request met its SLO is counted as it ends, by the bound that it began with,
  in `tidegate_slo_attained_total` and `tidegate_slo_missed_total`; from a histogram it can only be estimated.
  `tidegate_slo_objective` and `tidegate_slo_bound_seconds` follow a reload at once.
"""

LABEL_VALUES: Mapping[str, Iterable[str]] = MappingProxyType(
    {
        "outcome": OutcomeKind,
        "path": (*Path, NO_PATH),
        "reason of path_total": Reason,
        "reason of refusals_total": RefusalKind,
        "reason of policy_refused_total": BundleFault,
        "kind, cause": UpstreamErrorKind,
        "type": TokenType,
        "role of worker_selected_total": Leg,
        "role of worker metrics and workers": Role,
        "state of workers": BREAKER_NUMBER,
        "bound of slo_missed_total": MissedBound,
        "bound of slo_bound_seconds": (MissedBound.TTFT, MissedBound.TPOT),
        "outcome of shared_calls_total": SharedOutcome,
        "stat": LagStat,
    }
)
"""The closed lists, under the labels (and, where a name has two meanings, the metrics) that take them."""


def metrics_reference() -> str:
    """The page, in Markdown."""
    return "\n".join((INTRODUCTION, *_metric_table(), "", *_label_table(), "", *_bucket_table(), ""))


def _metric_table() -> Iterator[str]:
    yield from _table("Metric", "Type", "Labels", "Meaning", "Processes")
    for spec in METRICS:
        yield _row(f"`{spec.full_name}`", spec.type, _codes(spec.labels), spec.help, spec.across)


def _label_table() -> Iterator[str]:
    yield "## Label values\n"
    yield from _table("Label", "Values")
    for label, values in LABEL_VALUES.items():
        yield _row(label, _codes(values))


def _bucket_table() -> Iterator[str]:
    yield "## Histogram boundaries\n"
    yield from _table("Metric", "Boundaries")
    for spec in METRICS:
        if spec.buckets:
            yield _row(f"`{spec.full_name}`", " ".join(f"{bound:g}" for bound in spec.buckets))


def _table(*titles: str) -> Iterator[str]:
    yield _row(*titles)
    yield _row(*("---" for _ in titles))


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _codes(values: Iterable[str]) -> str:
    return ", ".join(f"`{value}`" for value in values)


if __name__ == "__main__":
    sys.stdout.write(metrics_reference())
