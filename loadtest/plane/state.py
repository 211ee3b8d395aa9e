"""What the gateway says of itself on its metrics page.

The rule of this module: read from the page alone, as an operator would.
"""

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from loadtest.crowd.checks import Page, read_page

POLL_S = 0.2
HELD = (
    "tidegate_inflight_requests",
    "tidegate_worker_inflight_requests",
    "tidegate_worker_inflight_tokens",
    "tidegate_waiting_requests",
)
"""Each is 0 where nothing is left of any request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayState:
    """One moment."""

    held: Mapping[str, float]
    """The sums of `HELD`, without `tidegate_`."""
    busy: float
    """Connections to workers on which a request is under way."""
    connections: float
    """All connections to workers."""
    outcomes: Mapping[str, int]
    """Requests since the start, by outcome."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing is left of any request."""
        return not any(self.held.values()) and not self.busy

    @property
    def words(self) -> str:
        """What is held."""
        return ", ".join(f"{name} {value:.0f}" for name, value in [*self.held.items(), ("busy connections", self.busy)])

    @classmethod
    def of(cls, page: Page) -> "GatewayState":
        """What a page shows."""
        outcomes: Counter[str] = Counter()
        for sample in page:
            if sample.name == "tidegate_requests_total":
                outcomes[sample.labels["outcome"]] += int(sample.value)
        lines = [sample for sample in page if sample.name == "tidegate_upstream_connections"]
        return cls(
            held={
                name.removeprefix("tidegate_"): sum(sample.value for sample in page if sample.name == name)
                for name in HELD
            },
            busy=sum(line.value for line in lines if line.labels["state"] == "busy"),
            connections=sum(line.value for line in lines),
            outcomes=outcomes,
        )


def settled(url: str, is_settled: Callable[[GatewayState], bool], *, within_s: float) -> GatewayState:
    """The first state that is settled, or else the one when time is up; raises OSError.

    Args:
        url: the gateway's.
        is_settled: what to wait for.
        within_s: how long to wait.
    """
    deadline_s = time.monotonic() + within_s
    while True:
        state = GatewayState.of(read_page(f"{url}/metrics"))
        if is_settled(state) or time.monotonic() > deadline_s:
            return state
        time.sleep(POLL_S)
