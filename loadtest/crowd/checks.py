"""What must hold once a crowd has gone.

The rule of this module: the gateway's and the workers' own pages are held against what the clients saw, and memory
against a state of equal rest.
"""

import urllib.request
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from gateway.core.types import OutcomeKind
from loadtest.crowd.crowd import LEFT, OK, CrowdResult

MEMORY_SLACK = 0.10
"""Memory counts as back at its start within this share."""

Page = Sequence[Sample]
"""What a metrics page shows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that must hold."""

    name: str
    seen: str
    holds: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What the gateway and its workers say of themselves at one moment."""

    rss_bytes: float
    """The gateway's resident memory."""
    inflight: float
    """Requests that the gateway serves, and those that it has at workers."""
    connections: float
    """The gateway's, to workers; idle ones are closed after some seconds."""
    outcomes: Mapping[str, int]
    """The gateway's requests since its start, by outcome."""
    worker_inflight: float
    """Requests that run or wait in the engines."""

    @property
    def at_rest(self) -> bool:
        """Whether nothing is left of any request."""
        return self.inflight == self.connections == self.worker_inflight == 0

    @classmethod
    def of(cls, gateway: Page, workers: Iterable[Page]) -> "State":
        """The state that these pages show."""
        outcomes: Counter[str] = Counter()
        for sample in gateway:
            if sample.name == "tidegate_requests_total":
                outcomes[sample.labels["outcome"]] += int(sample.value)
        return cls(
            rss_bytes=_sum(gateway, "process_resident_memory_bytes"),
            inflight=_sum(gateway, "tidegate_inflight_requests") + _sum(gateway, "tidegate_worker_inflight_requests"),
            connections=_sum(gateway, "tidegate_upstream_connections"),
            outcomes=outcomes,
            worker_inflight=sum(
                _sum(page, "vllm:num_requests_running") + _sum(page, "vllm:num_requests_waiting") for page in workers
            ),
        )


def checks(result: CrowdResult, before: State, after: State, *, streams: int) -> list[Check]:
    """Hold a crowd of `streams` places, and the states before and after it, against each other."""
    ok, left = result.outcomes[OK], result.outcomes[LEFT]
    lost = result.started - ok - left
    growth = after.rss_bytes / before.rss_bytes - 1.0
    return [
        Check(name="streams open at once", seen=f"{result.peak_concurrent}", holds=result.peak_concurrent >= streams),
        Check(
            name="streams begun, ended well, left", seen=f"{result.started}, {ok}, {left}", holds=ok + left > streams
        ),
        Check(name="streams lost", seen=f"{lost} {dict(result.outcomes)}", holds=lost == 0),
        Check(name="streams with too few or too many tokens", seen=f"{result.short}", holds=result.short == 0),
        _counted_once(result, before, after),
        Check(
            name="afterwards in flight at gateway, at workers; connections to workers",
            seen=f"{after.inflight:.0f}, {after.worker_inflight:.0f}; {after.connections:.0f}",
            holds=after.at_rest,
        ),
        Check(
            name="gateway memory before, after",
            seen=f"{before.rss_bytes / 2**20:.1f} MB, {after.rss_bytes / 2**20:.1f} MB ({growth:+.1%})",
            holds=growth <= MEMORY_SLACK,
        ),
    ]


def _counted_once(result: CrowdResult, before: State, after: State) -> Check:
    def gained(outcome: OutcomeKind) -> int:
        return after.outcomes.get(outcome, 0) - before.outcomes.get(outcome, 0)

    ok, left = result.outcomes[OK], result.outcomes[LEFT]
    counted_ok, counted_left = gained(OutcomeKind.OK), gained(OutcomeKind.CANCELLED)
    counted = sum(after.outcomes.values()) - sum(before.outcomes.values())
    return Check(
        name="gateway counts each stream once",
        seen=f"{counted_ok} ok + {counted_left} cancelled of {result.started}",
        # A client that leaves before its request is whole was never a request; one that leaves as the last byte
        # comes is ok to the gateway: so the sum is bounded, and ok is at least what the clients saw.
        holds=counted_ok + counted_left == counted <= ok + left and ok <= counted_ok,
    )


def read_page(url: str) -> Page:
    """Fetch and read a metrics page; raises OSError."""
    with urllib.request.urlopen(url, timeout=30.0) as page:  # noqa: S310 (our own loopback URL)
        return parse_page(page.read().decode())


def parse_page(text: str) -> Page:
    """The samples of a page in the Prometheus text format; raises ValueError where it is none."""
    return [sample for family in text_string_to_metric_families(text) for sample in family.samples]


def _sum(page: Page, name: str) -> float:
    return sum(sample.value for sample in page if sample.name == name)
