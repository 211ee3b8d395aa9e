"""The series that one request touches, found once for all requests like it.

The rule of this module: a series is made when there is something to count in it, never before: what was not measured
is not shown. Series that are dropped with their worker are not kept here.
"""

from typing import Final

from gateway.core.types import Outcome
from gateway.telemetry.labels import TokenType
from gateway.telemetry.series import CounterSeries, Family, HistogramSeries


class AlikeFamilies:
    """The families of what every routed request is counted in."""

    __slots__ = ("duration", "requests", "tokens", "tpot", "ttft")

    def __init__(
        self,
        *,
        requests: Family[CounterSeries],
        duration: Family[HistogramSeries],
        ttft: Family[HistogramSeries],
        tpot: Family[HistogramSeries],
        tokens: Family[CounterSeries],
    ) -> None:
        self.requests: Final = requests
        self.duration: Final = duration
        self.ttft: Final = ttft
        self.tpot: Final = tpot
        self.tokens: Final = tokens


class Alike:
    """The series of requests of one model, on one path, that ended the same way."""

    __slots__ = (
        "_cached",
        "_duration",
        "_families",
        "_input",
        "_output",
        "_path",
        "_requests",
        "_tpot",
        "_ttft",
        "model",
    )

    def __init__(self, families: AlikeFamilies, *, model: str, served_model: str, path: str, outcome: str) -> None:
        self.model: Final = model
        """The label."""
        self._families: Final = families
        self._path: Final = path
        self._requests: Final = families.requests.labels(model, served_model, path, outcome)
        self._duration: Final = families.duration.labels(model, outcome)
        self._ttft: HistogramSeries | None = None
        self._tpot: HistogramSeries | None = None
        self._input: CounterSeries | None = None
        self._cached: CounterSeries | None = None
        self._output: CounterSeries | None = None

    def count(self, outcome: Outcome) -> None:
        """Count a request that ended so."""
        self._requests.value += 1.0
        self._duration.observe(outcome.duration_s)
        if outcome.ttft_s is not None:
            (self._ttft or self._begin_ttft()).observe(outcome.ttft_s)
        if outcome.tpot_s is not None:
            (self._tpot or self._begin_tpot()).observe(outcome.tpot_s)
        if outcome.input_tokens is not None:
            (self._input or self._begin_input()).value += outcome.input_tokens
        if outcome.cached_tokens is not None:
            (self._cached or self._begin_cached()).value += outcome.cached_tokens
        if outcome.output_tokens is not None:
            (self._output or self._begin_output()).value += outcome.output_tokens

    def _begin_ttft(self) -> HistogramSeries:
        self._ttft = self._families.ttft.labels(self.model, self._path)
        return self._ttft

    def _begin_tpot(self) -> HistogramSeries:
        self._tpot = self._families.tpot.labels(self.model, self._path)
        return self._tpot

    def _begin_input(self) -> CounterSeries:
        self._input = self._families.tokens.labels(self.model, TokenType.INPUT)
        return self._input

    def _begin_cached(self) -> CounterSeries:
        self._cached = self._families.tokens.labels(self.model, TokenType.CACHED)
        return self._cached

    def _begin_output(self) -> CounterSeries:
        self._output = self._families.tokens.labels(self.model, TokenType.OUTPUT)
        return self._output
