"""The one telemetry call per request.

The rule of this module: metrics, decision log and log event are told the same things at the same moment, so that
they can never disagree on what happened.
"""

from dataclasses import dataclass

from structlog.typing import FilteringBoundLogger

from gateway.core.types import Decision, Outcome, Refusal, RequestId
from gateway.telemetry.decisions import DecisionLog
from gateway.telemetry.logs import log_finished
from gateway.telemetry.recorder import Metrics


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestTelemetry:
    """Everything that is told of a request's end."""

    metrics: Metrics
    decisions: DecisionLog
    logger: FilteringBoundLogger | None
    """Bound once (`get_logger().bind()`): binding anew per request costs more than the rest of the event. None
    writes no line per request."""

    def finished(
        self,
        routed: Decision | Refusal | None,
        outcome: Outcome,
        *,
        request_id: RequestId,
        model: str | None,
        decision_s: float | None = None,
        prefill_leg_s: float | None = None,
        first_text_s: float | None = None,
    ) -> None:
        """Tell of a request that has ended; exactly once per request, however it ended.

        `routed` is the last decision, or the core's refusal, or None where the request never got to the core;
        `model` is None where the request could not be read. `first_text_s` is the time from its arrival to the
        first text that a user sees, where it showed any.
        """
        self.metrics.record(
            routed,
            outcome,
            model_label=model or "",
            decision_s=decision_s,
            prefill_leg_s=prefill_leg_s,
            first_text_s=first_text_s,
        )
        self.decisions.append(routed, outcome, request_id=request_id, model=model)
        if self.logger is not None:
            log_finished(self.logger, routed, outcome, request_id=request_id, model=model)
