"""One request's own books: how long it took to decide, and what is written down when it ends.

The rule of this module: a request is closed once. Core, metrics, decision log and log line are told the same outcome
at the same moment.
"""

from gateway.core.events import Finished
from gateway.core.slo import attained
from gateway.core.types import Decision, Outcome, OutcomeKind, Refusal, WorkerId
from gateway.core.waiting import Wait
from gateway.upstream.services import ClientRequest, Services
from gateway.upstream.watch import AnswerWatch
from gateway.wire.peeked import Peeked
from gateway.wire.usage import Usage

MAX_MODEL_CHARS = 256
"""A client may send any text as a model; logs and records keep so much of it."""


class Account:
    """Keeps a request's times and closes it."""

    __slots__ = (
        "_facts",
        "_request",
        "_services",
        "_stores",
        "cached_tokens",
        "closed",
        "decision_s",
        "model",
        "prefill_leg_s",
    )

    def __init__(self, services: Services, request: ClientRequest, peeked: Peeked) -> None:
        self._services = services
        self._request = request
        self._facts = peeked.facts
        self._stores = peeked.stores
        self.model = peeked.raw_model[:MAX_MODEL_CHARS]
        """As the client wrote it, cut."""
        self.closed = False
        self.decision_s = 0.0
        """What the last decision took."""
        self.prefill_leg_s: float | None = None
        self.cached_tokens: int | None = None
        """The prefill worker's count, where there was a hand-off: the decode worker's says nothing of it."""

    def decide(self, *, exclude: frozenset[WorkerId], attempt: int) -> Decision | Refusal | Wait:
        """Ask the core, and note how long it took."""
        clock = self._services.clock
        began_s = clock()
        routed = self._services.core.submit(self._facts, began_s, exclude=exclude, attempt=attempt)
        self.decision_s = clock() - began_s
        return routed

    def open(self) -> None:
        """The request is routed and in flight."""
        self._services.telemetry.metrics.inflight(self.model).inc()

    def refuse(self, refusal: Refusal, status: int) -> None:
        """Close a request that was never routed."""
        assert not self.closed
        self.closed = True
        duration_s = self._services.clock() - self._request.arrived_s
        self._tell(refusal, Outcome(kind=OutcomeKind.REFUSED, status=status, duration_s=duration_s))

    def leave(self, status: int) -> None:
        """Close a request whose client left before it was routed."""
        assert not self.closed
        self.closed = True
        duration_s = self._services.clock() - self._request.arrived_s
        self._tell(None, Outcome(kind=OutcomeKind.CANCELLED, status=status, duration_s=duration_s))

    def close(
        self,
        decision: Decision,
        kind: OutcomeKind,
        status: int,
        *,
        watch: AnswerWatch | None,
        blame: WorkerId | None,
    ) -> None:
        """Close a routed request: its reservation ends here."""
        assert not self.closed
        self.closed = True
        now_s = self._services.clock()
        outcome = self._outcome(decision, kind, status, watch, now_s)
        self._services.core.observe(
            Finished(at_s=now_s, decision_id=decision.decision_id, outcome=outcome, blame=blame)
        )
        self._services.telemetry.metrics.inflight(self.model).dec()
        first_s = watch.first_text_s if watch else None
        self._tell(decision, outcome, first_text_s=None if first_s is None else first_s - self._request.arrived_s)

    def _outcome(
        self, decision: Decision, kind: OutcomeKind, status: int, watch: AnswerWatch | None, now_s: float
    ) -> Outcome:
        arrived_s = self._request.arrived_s
        first_s = watch.first_content_s if watch else None
        ttft_s = None if first_s is None else first_s - arrived_s
        usage = watch.usage() if watch else None
        output_tokens = usage.output_tokens if usage else None
        tpot_s = watch.tpot_s(output_tokens) if watch else None
        return Outcome(
            kind=kind,
            status=status,
            duration_s=now_s - arrived_s,
            ttft_s=ttft_s,
            tpot_s=tpot_s,
            input_tokens=usage.input_tokens if usage else None,
            cached_tokens=self._cached_tokens(usage),
            output_tokens=output_tokens,
            attained=self._attained(decision, kind, now_s - arrived_s, ttft_s, tpot_s, output_tokens),
            # A worker that answers in the background keeps an answer whose client has left.
            response_id=watch.response_id() if self._stores and watch else None,
        )

    def _cached_tokens(self, usage: Usage | None) -> int | None:
        if self.cached_tokens is not None:
            return self.cached_tokens
        return usage.cached_tokens if usage else None

    def _attained(
        self,
        decision: Decision,
        kind: OutcomeKind,
        duration_s: float,
        ttft_s: float | None,
        tpot_s: float | None,
        output_tokens: int | None,
    ) -> bool | None:
        # An objective speaks of tokens: what makes none is not judged.
        if not self._facts.endpoint.generates:
            return None
        return attained(
            decision.slo,
            kind=kind,
            duration_s=duration_s,
            ttft_s=ttft_s,
            tpot_s=tpot_s,
            output_tokens=output_tokens,
        )

    def _tell(self, routed: Decision | Refusal | None, outcome: Outcome, *, first_text_s: float | None = None) -> None:
        self._services.telemetry.finished(
            routed,
            outcome,
            request_id=self._request.request_id,
            model=self.model,
            decision_s=self.decision_s,
            prefill_leg_s=self.prefill_leg_s,
            first_text_s=first_text_s,
        )
