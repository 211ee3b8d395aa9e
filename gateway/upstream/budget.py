"""How many retries the gateway allows itself.

The rule of this module: retries are a small share of requests, so that a failing fleet is not hit harder for it.
Source: the retry budgets of Finagle and Linkerd.
"""

from dataclasses import dataclass, field


@dataclass(slots=True, kw_only=True)
class RetryBudget:
    """A bucket that every request fills a little and every retry empties by one."""

    ratio: float = 0.2
    """Retries per request in the long run."""
    reserve: int = 10
    """Retries that are allowed at once beyond that; also the size of the bucket."""
    _tokens: float = field(init=False)

    def __post_init__(self) -> None:
        self._tokens = float(self.reserve)

    def saw_request(self) -> None:
        """A first attempt was made."""
        self._tokens = min(self._tokens + self.ratio, float(self.reserve))

    @property
    def allows(self) -> bool:
        """Whether one more retry is affordable now."""
        return self._tokens >= 1.0

    def spend(self) -> None:
        """A retry is made."""
        self._tokens -= 1.0
