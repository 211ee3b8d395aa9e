"""PromQL made of declared metrics.

The rule of this module: an expression names a metric by its `MetricSpec`, never by text, so a dashboard cannot ask
for a metric that nothing declares. Every selector carries the dashboard's variables that the metric has labels for.
"""

from collections.abc import Sequence

from gateway.telemetry.metrics import MetricSpec, MetricType

WINDOW = "$__rate_interval"
"""Grafana's: at least four scrapes."""
WHOLE_RANGE = "$__range"

VARIABLE_LABELS = {"model": "$model", "slo": "$slo"}
"""Labels that a dashboard variable of the same name chooses."""
EVERY_SERIES = ('instance=~"$instance"',)


def select(metric: MetricSpec, *matchers: str, suffix: str = "") -> str:
    """A metric's series within the dashboard's variables; `matchers` are further ones such as `role="decode"`."""
    chosen = [f'{label}=~"{variable}"' for label, variable in VARIABLE_LABELS.items() if label in metric.labels]
    return f"{metric.full_name}{suffix}{{{', '.join((*EVERY_SERIES, *chosen, *matchers))}}}"


def rate(metric: MetricSpec, *matchers: str, by: Sequence[str] = (), window: str = WINDOW) -> str:
    """Events per second of a counter, summed by labels."""
    return total(f"rate({select(metric, *matchers)}[{window}])", by)


def increase(metric: MetricSpec, *matchers: str, by: Sequence[str] = (), window: str = WHOLE_RANGE) -> str:
    """How much a counter grew, summed by labels."""
    return total(f"increase({select(metric, *matchers)}[{window}])", by)


def quantile(share: float, histogram: MetricSpec, *matchers: str, window: str = WINDOW) -> str:
    """A quantile of a histogram over all its series."""
    assert histogram.type is MetricType.HISTOGRAM
    buckets = total(f"rate({select(histogram, *matchers, suffix='_bucket')}[{window}])", ("le",))
    return f"histogram_quantile({share:g}, {buckets})"


def mean(histogram: MetricSpec, window: str = WINDOW) -> str:
    """The mean of what a histogram saw within the window."""
    parts = (total(f"rate({select(histogram, suffix=suffix)}[{window}])") for suffix in ("_sum", "_count"))
    return " / ".join(parts)


def total(expr: str, by: Sequence[str] = ()) -> str:
    """A sum by labels."""
    return aggregate("sum", expr, by)


def aggregate(operator: str, expr: str, by: Sequence[str] = ()) -> str:
    """An aggregation by labels."""
    return f"{operator} by ({', '.join(by)}) ({expr})" if by else f"{operator}({expr})"
