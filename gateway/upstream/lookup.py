"""Asking workers for what one of them keeps by an id: a stored response.

The rule of this module: no decision and no reservation, and one record as for every request. Whoever keeps the
response answers, and that answer passes untouched; another worker is asked only where one does not know the id or
cannot say.

    asking -> relaying -> ended
      ^ |
      |_| 404, or no answer that says anything: the next worker, until nobody is left
"""

from collections.abc import Sequence
from dataclasses import replace

from gateway.core.types import Outcome, OutcomeKind, WorkerId
from gateway.upstream.answers import BODILESS, answer_error, relayed_headers
from gateway.upstream.errors import PoolClosed, UpstreamError
from gateway.upstream.exchange import Exchange, Limits
from gateway.upstream.faults import Fault, fault_of_error, fault_of_status
from gateway.upstream.heads import UnsafeHead, UpstreamRequest
from gateway.upstream.journey import CLIENT_CLOSED_REQUEST
from gateway.upstream.services import ClientRequest, ClientSink, Headers, Services
from gateway.upstream.watch import is_event_stream
from gateway.wire import errors as api_errors
from gateway.wire.errors import ApiError

NOT_FOUND = 404
FIRST_BYTE_TIMEOUT_S = 10.0
"""Nothing is computed for such an answer, so a worker that says nothing for so long is not well."""
MAX_PASSED_OVER_BYTES = 64 * 1024
"""Of an answer that is passed over; a longer one is broken off."""


class Lookup:
    """Carries one request for a stored response to its end. Make it, call `begin`, pass on what the client does.

    Args:
        services: what requests share.
        request: the client's.
        sink: the client's side.
        workers: who is asked, in this order.
        missing: what the client is told where nobody knows the id; None where the one worker's own word counts.
    """

    def __init__(
        self,
        services: Services,
        request: ClientRequest,
        sink: ClientSink,
        *,
        workers: Sequence[WorkerId],
        missing: ApiError | None,
    ) -> None:
        self._services = services
        self._request = request
        self._sink = sink
        self._left = list(reversed(workers))
        self._missing = missing
        self._worker_id: WorkerId | None = None
        self._exchange: Exchange | None = None
        self._fault: Fault | None = None
        """Why the first worker that could not say could not."""
        self._passed_over = 0
        self._status: int | None = None
        """Of the answer that is relayed; None while nobody's is."""
        self._streamed = False
        self._closed = False

    # -- what the client does ----------------------------------------------------------------------------------

    def begin(self) -> None:
        """Ask the first worker."""
        self._ask_next()

    def client_gone(self) -> None:
        """The client left: stop upstream."""
        if not self._closed:
            self._close(OutcomeKind.CANCELLED, CLIENT_CLOSED_REQUEST)

    def pause(self) -> None:
        """The client reads slower than the worker writes."""
        if self._exchange is not None:
            self._exchange.pause_reading()

    def resume(self) -> None:
        """The client has caught up."""
        if self._exchange is not None:
            self._exchange.resume_reading()

    # -- what a worker says ------------------------------------------------------------------------------------

    def on_head(self, status: int, headers: Headers, /) -> None:
        """Relay, unless the worker does not know the id, or cannot say and another might."""
        assert self._worker_id is not None
        fault = fault_of_status(status)
        if fault is not None:
            self._services.telemetry.metrics.upstream_error(self._worker_id, fault.label)
        if self._missing is not None and (fault is not None or status == NOT_FOUND):
            self._fault = self._fault or fault
            return
        self._status = status
        self._streamed = is_event_stream(headers)
        kept = relayed_headers(headers, self._request, None, reframed=self._streamed or status in BODILESS)
        self._sink.start(status, [*kept, (b"x-tidegate-worker", self._worker_id.encode("latin-1"))])

    def on_body(self, data: bytes, /) -> None:
        """Pass the bytes on, or over."""
        if self._status is not None:
            self._sink.write(data)
            return
        self._passed_over += len(data)
        if self._passed_over > MAX_PASSED_OVER_BYTES:
            assert self._exchange is not None
            self._exchange.abort()
            self._ask_next()

    def on_lull(self) -> None:
        """What was passed on may go."""
        if self._status is not None:
            self._sink.flush()

    def on_end(self) -> None:
        """The answer is whole."""
        if self._status is None:
            self._ask_next()
            return
        fault = fault_of_status(self._status)
        if fault is not None:
            kind = fault.outcome
        else:
            kind = OutcomeKind.OK if self._status < 400 else OutcomeKind.CLIENT_ERROR
        self._close(kind, self._status)
        self._sink.finish()

    def on_error(self, error: UpstreamError, /) -> None:
        """Ask another worker, or tell the client in the way that is still open."""
        assert self._worker_id is not None
        fault = fault_of_error(error)
        self._services.telemetry.metrics.upstream_error(self._worker_id, fault.label)
        if self._status is None:
            self._fault = self._fault or fault
            self._ask_next()
            return
        self._close(fault.outcome, self._status)
        if self._streamed:
            # Half an event may be out, which a blank line ends.
            self._sink.write(b"\n\n" + self._request.dialect.sse_error(fault.error))
            self._sink.finish()
        else:
            self._sink.break_off()

    # -- the next worker, and the end --------------------------------------------------------------------------

    def _ask_next(self) -> None:
        origins = self._services.origins
        while self._left:
            worker_id = self._left.pop()
            if worker_id in origins:  # else it has left since the request came
                self._ask(worker_id)
                return
        if self._fault is not None:
            # One that did not say might have it.
            self._fail(self._fault.outcome, self._fault.error)
        elif self._worker_id is None:
            error = api_errors.unavailable("No worker that keeps responses is here now.", retry_after_s=1.0)
            self._fail(OutcomeKind.UPSTREAM_ERROR, error)
        else:
            assert self._missing is not None
            self._fail(OutcomeKind.CLIENT_ERROR, self._missing)

    def _ask(self, worker_id: WorkerId) -> None:
        request, services = self._request, self._services
        self._worker_id, self._passed_over = worker_id, 0
        outgoing = UpstreamRequest(
            method=request.method,
            target=request.target,
            headers=request.headers,
            own_headers=((b"x-request-id", request.request_id.encode("latin-1")), *request.own_headers),
            body=request.body,
        )
        try:
            self._exchange = services.pool.start(
                services.origins[worker_id], outgoing, self, _limits(services.decode_limits)
            )
        except UnsafeHead as error:
            self._fail(OutcomeKind.CLIENT_ERROR, api_errors.bad_request(f"A header cannot be forwarded: {error}."))
        except PoolClosed:
            self._fail(OutcomeKind.UPSTREAM_ERROR, api_errors.unavailable("The gateway is shutting down."))

    def _fail(self, kind: OutcomeKind, error: ApiError) -> None:
        """End with an answer of the gateway's own; nothing was sent before."""
        self._close(kind, error.status)
        answer_error(self._sink, error, self._request, None)

    def _close(self, kind: OutcomeKind, status: int) -> None:
        """The one end; the client's side is the caller's."""
        assert not self._closed
        self._closed = True
        if self._exchange is not None:
            self._exchange.abort()
        duration_s = self._services.clock() - self._request.arrived_s
        outcome = Outcome(kind=kind, status=status, duration_s=duration_s)
        self._services.telemetry.finished(None, outcome, request_id=self._request.request_id, model=None)


def _limits(limits: Limits) -> Limits:
    wait_s = limits.first_byte_timeout_s
    least_s = FIRST_BYTE_TIMEOUT_S if wait_s is None else min(wait_s, FIRST_BYTE_TIMEOUT_S)
    return replace(limits, first_byte_timeout_s=least_s)
