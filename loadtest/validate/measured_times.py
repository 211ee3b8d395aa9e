"""When things happened to the requests of one run, measured or predicted, and what is compared of it.

All times are seconds from the first request's arrival, one per request in order of arrival.

- Queueing ends when the scheduler first gives the request tokens to compute. It begins at arrival, not when vLLM's
  scheduler has the request (`queued_ts`): a request that comes while vLLM waits for a step lies in a socket till then,
  which is queueing to whoever sent it.
- TTFT runs from arrival to the step's end that gave the first token.
- TPOT is the mean time between output tokens: from the first to the last, over one less than there are.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

Seconds = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RequestTimes:
    """One run's requests."""

    arrival_s: Seconds
    scheduled_s: Seconds
    first_token_s: Seconds
    last_token_s: Seconds
    output_tokens: npt.NDArray[np.int64]

    @property
    def queueing_s(self) -> Seconds:
        """From arrival until the request is first scheduled."""
        return self.scheduled_s - self.arrival_s

    @property
    def ttft_s(self) -> Seconds:
        """From arrival until the first token."""
        return self.first_token_s - self.arrival_s

    @property
    def tpot_s(self) -> Seconds:
        """Between output tokens, of those requests that have more than one."""
        several = self.output_tokens > 1
        return ((self.last_token_s - self.first_token_s)[several]) / (self.output_tokens[several] - 1)


METRICS: Mapping[str, Callable[[RequestTimes], Seconds]] = MappingProxyType(
    {
        "queueing": lambda times: times.queueing_s,
        "TTFT": lambda times: times.ttft_s,
        "TPOT": lambda times: times.tpot_s,
    }
)


def measured_times(run: Mapping[str, Any]) -> RequestTimes:
    """The times of a measured run.

    Arrivals are wall-clock and all else is monotonic. The first request finds the engine idle, so the two clocks are
    mapped by its arrival and `queued_ts`; its way through the front end, 1 to 2 ms, is lost to all requests.
    """
    requests = run["requests"]
    origin = requests[0]["queued_ts"]
    arrival = _column(run, "arrival_time")
    return RequestTimes(
        arrival_s=arrival - arrival[0],
        scheduled_s=_column(run, "scheduled_ts") - origin,
        first_token_s=_column(run, "first_token_ts") - origin,
        last_token_s=_column(run, "last_token_ts") - origin,
        output_tokens=np.array([request["output_toks"] for request in requests]),
    )


def _column(run: Mapping[str, Any], name: str) -> Seconds:
    return np.array([request[name] for request in run["requests"]], dtype=np.float64)
