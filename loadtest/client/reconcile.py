"""Holds a gateway's metrics against what its client saw.

The rule of this module: pure. The text of `/metrics` before and after a run and the run's records go in; one row
per figure comes out. Counts and tokens must be equal, times need not be. The run must have been the gateway's
only traffic in between.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from prometheus_client.parser import text_string_to_metric_families

from gateway.core.types import Path
from loadtest.client.records import Record

PREFIX: Final = "tidegate_"
Labels = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcileRow:
    """One figure as the client and the gateway have it."""

    name: str
    client: float
    gateway: float
    equal: bool | None
    """Whether the two are the same; None where they need not be."""
    note: str = ""


class MetricsText:
    """The samples of one `/metrics` page whose names begin with `tidegate_`."""

    def __init__(self, text: str) -> None:
        self._samples: dict[str, list[tuple[Labels, float]]] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name.startswith(PREFIX):
                    self._samples.setdefault(sample.name, []).append((sample.labels, sample.value))

    def __bool__(self) -> bool:
        return bool(self._samples)

    def total(self, name: str, **where: str) -> float:
        """The sum over a metric's series that have these labels; 0 without any."""
        return sum(
            value
            for labels, value in self._samples.get(PREFIX + name, ())
            if all(labels.get(label) == wanted for label, wanted in where.items())
        )


@dataclass(frozen=True, slots=True)
class _Change:
    """What was added between two pages."""

    before: MetricsText
    after: MetricsText

    def total(self, name: str, **where: str) -> float:
        return self.after.total(name, **where) - self.before.total(name, **where)


def reconcile(records: Sequence[Record], before: str, after: str) -> list[ReconcileRow]:
    """Compares a run's records, in real seconds, with the change between two pages of a Tidegate's `/metrics`.

    Empty where `after` has no series of a Tidegate. A request that was never sent counts on neither side.
    """
    change = _Change(MetricsText(before), MetricsText(after))
    if not change.after:
        return []
    sent = [record for record in records if record.sent_s is not None]
    return [*_outcomes(sent, change), *_tokens(sent, change), *_latencies(sent, change)]


def _exact(name: str, client: float, gateway: float) -> ReconcileRow:
    return ReconcileRow(name=name, client=client, gateway=gateway, equal=client == gateway)


def _outcomes(sent: Sequence[Record], change: _Change) -> list[ReconcileRow]:
    ok = [
        _exact(
            f"requests ok, {path}",
            sum(record.ok and record.path == path for record in sent),
            change.total("requests_total", outcome="ok", path=path),
        )
        for path in Path
    ]
    not_ok = change.total("requests_total") - change.total("requests_total", outcome="ok")
    return [*ok, _exact("requests not ok", sum(not record.ok for record in sent), not_ok), _decisions(sent, change)]


def _decisions(sent: Sequence[Record], change: _Change) -> ReconcileRow:
    """Decisions that reached an answer: of a request given up before, the client cannot know if it had one."""
    retries = change.total("retries_total")
    client = sum(record.path is not None for record in sent)
    gateway = change.total("path_total") - retries
    return ReconcileRow(
        name="decisions",
        client=client,
        gateway=gateway,
        equal=client == gateway if all(record.status is not None for record in sent) else None,
        note=f"{retries:.0f} retries left out",
    )


def _tokens(sent: Sequence[Record], change: _Change) -> list[ReconcileRow]:
    sums = {
        "input": _known_sum(record.input_tokens for record in sent),
        "cached": _known_sum(record.cached_tokens for record in sent),
        "output": _known_sum(record.output_tokens for record in sent),
    }
    return [_exact(f"{kind} tokens", tokens, change.total("tokens_total", type=kind)) for kind, tokens in sums.items()]


def _latencies(sent: Sequence[Record], change: _Change) -> list[ReconcileRow]:
    """Counts of observed latencies, and the TTFT sum: the client's clock starts earlier by the way there."""
    ttfts_s = [
        record.ttft_s - record.lag_s for record in sent if record.ttft_s is not None and record.lag_s is not None
    ]
    client_s, gateway_s = sum(ttfts_s), change.total("ttft_seconds_sum")
    per_request_ms = 1000.0 * (client_s - gateway_s) / max(1, len(ttfts_s))
    return [
        _exact("TTFT observations", len(ttfts_s), change.total("ttft_seconds_count")),
        _exact(
            "TPOT observations",
            sum(record.tpot_s is not None for record in sent),
            change.total("tpot_seconds_count"),
        ),
        ReconcileRow(
            name="TTFT sum, real s",
            client=client_s,
            gateway=gateway_s,
            equal=None,
            note=f"client {per_request_ms:+.2f} ms each",
        ),
    ]


def _known_sum(values: Iterable[int | None]) -> int:
    return sum(value for value in values if value is not None)
