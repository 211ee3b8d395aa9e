"""A request of the hot routes between its body and its journey.

The rule of this module: no I/O. Whatever reads a request and writes its answer, all that is decided between the two is
decided here, so that no client can tell by which way its bytes went.
"""

from collections.abc import Awaitable, Callable

from gateway.api.asgi import Scope
from gateway.api.intake import Intake
from gateway.api.refusal import WholeAnswer, refusal, refusal_in
from gateway.core.types import Outcome, OutcomeKind, RequestFacts, RequestId
from gateway.upstream.journey import CLIENT_CLOSED_REQUEST, Journey
from gateway.upstream.services import ClientRequest, ClientSink, Services
from gateway.wire.errors import ApiError
from gateway.wire.peeked import Peeked

Before = Callable[[RequestFacts], Awaitable[object] | None]
"""What to wait for before a request is routed; None for nothing."""


class Reception:
    """Takes requests and sends them on.

    Args:
        services: what a journey needs.
        intake: makes requests ready to be sent.
        max_body_bytes: larger bodies are refused with 413.
        before: is asked about every request that can travel; None where nothing ever has to be waited for.
    """

    def __init__(
        self, services: Services, intake: Intake, *, max_body_bytes: int, before: Before | None = None
    ) -> None:
        self._services = services
        self._intake = intake
        self.clock = services.clock
        """Seconds, monotone."""
        self.max_body_bytes = max_body_bytes
        self._before = before

    def take(
        self, scope: Scope, body: bytes | ApiError, request_id: RequestId, arrived_s: float
    ) -> tuple[ClientRequest, Peeked] | WholeAnswer:
        """The request that can travel; or the answer to one that cannot, which has been counted.

        Args:
            scope: path, headers and caller.
            body: the whole body, or why it was not read.
            request_id: see `request_id_of`.
            arrived_s: when its head was whole.
        """
        taken = body if isinstance(body, ApiError) else self._intake.take(scope, body, request_id, arrived_s)
        if isinstance(taken, ApiError):
            self._record(request_id, OutcomeKind.CLIENT_ERROR, taken.status, arrived_s)
            return refusal(taken, scope["path"], request_id)
        return taken

    def wanted(self, peeked: Peeked) -> Awaitable[object] | None:
        """What to wait for before the journey; None for most requests."""
        return None if self._before is None else self._before(peeked.facts)

    def journey(self, request: ClientRequest, peeked: Peeked, sink: ClientSink) -> Journey | WholeAnswer:
        """The journey, which has not begun; or the answer to one that goes on from what is not the caller's.

        That is known only now, for what was waited for may have been where the response is.
        """
        error = self._intake.hidden(peeked.facts)
        if error is not None:
            self._record(request.request_id, OutcomeKind.CLIENT_ERROR, error.status, request.arrived_s)
            return refusal_in(request.dialect, error, request.request_id)
        return Journey(self._services, request, peeked, sink)

    def left(self, request_id: RequestId, arrived_s: float) -> None:
        """Count a request whose client left before it could travel."""
        self._record(request_id, OutcomeKind.CANCELLED, CLIENT_CLOSED_REQUEST, arrived_s)

    def _record(self, request_id: RequestId, kind: OutcomeKind, status: int, arrived_s: float) -> None:
        outcome = Outcome(kind=kind, status=status, duration_s=self.clock() - arrived_s)
        self._services.telemetry.finished(None, outcome, request_id=request_id, model=None)
