"""The decode leg: the answer that the client gets.

The rule of this module: before the client has seen anything another worker may be asked; afterwards it is told the
truth, in the way that is still open. An answer is held back only where another worker's may replace it, or where it
is whole and its cached tokens must be set right.
"""

from gateway.core.events import FirstToken
from gateway.core.types import OutcomeKind, WorkerId
from gateway.telemetry.labels import UpstreamErrorKind
from gateway.upstream.answers import BODILESS, relayed_headers
from gateway.upstream.course import Course
from gateway.upstream.errors import BrokenResponse, IdleTimeout, UpstreamError
from gateway.upstream.faults import fault_of_error, fault_of_status
from gateway.upstream.held import HeldAnswer
from gateway.upstream.relay import Relay
from gateway.upstream.services import Headers
from gateway.upstream.watch import AnswerWatch, is_event_stream
from gateway.wire import errors as api_errors
from gateway.wire.errors import ApiError
from gateway.wire.usage_edit import set_cached_tokens


class DecodeLeg:
    """Relays the decode worker's answer as it comes, or holds one that may be replaced by another worker's.

    Args:
        course: the journey.
        source: the prefill worker whose KV the worker is to fetch; None where it prefills by itself.
    """

    __slots__ = ("_course", "_held", "_relay", "_source", "_status", "_streaming", "_worker_id")

    def __init__(self, course: Course, source: WorkerId | None) -> None:
        self._course = course
        self._worker_id = course.decision.decode_worker
        self._source = source
        self._held: HeldAnswer | None = None
        self._relay: Relay | None = None
        self._status = 0
        self._streaming = False

    @property
    def watch(self) -> AnswerWatch | None:
        """What was seen of the answer on its way to the client; None before its head."""
        return self._relay.watch if self._relay else None

    # -- the answer as it comes --------------------------------------------------------------------------------

    def on_head(self, status: int, headers: Headers, /) -> None:
        """Hold or relay."""
        if self._is_to_be_held(status, headers):
            self._held = HeldAnswer(status, headers)
            return
        relay = self._begin_relay(status, headers)
        course = self._course
        reframed = relay.reframes or status in BODILESS
        course.sink.start(status, relayed_headers(headers, course.request, course.decision, reframed=reframed))

    def on_body(self, data: bytes, /) -> None:
        """Hold, or pass the bytes on and look at them."""
        if self._held is not None:
            self._held.add(data)
            return
        assert self._relay is not None
        now_s = self._course.services.clock()
        passed = self._relay.pass_on(data, now_s)
        if passed:
            self._course.sink.write(passed)
        self._note_pace(self._relay.watch, now_s)

    def on_lull(self) -> None:
        """What was passed on may go."""
        if self._held is None:
            self._course.sink.flush()

    def on_end(self) -> None:
        """The answer is whole, whatever it says, unless it is a stream that ends without its end."""
        if self._held is not None:
            self._held_ended(self._held)
            return
        relay, sink = self._relay, self._course.sink
        assert relay is not None
        rest = relay.finish(self._course.services.clock())
        if self._status < 400 and relay.watch.cut_short:
            self._cut_short(relay)
            return
        if rest:
            sink.write(rest)
        self._finish_by_status(relay.watch)
        sink.finish()

    def on_error(self, error: UpstreamError, /) -> None:
        """Ask another worker, or tell the client in the way that is still open."""
        course, worker_id, relay = self._course, self._worker_id, self._relay
        fault = fault_of_error(error)
        course.services.telemetry.metrics.upstream_error(worker_id, fault.label)
        blame = worker_id if fault.blames_worker else None
        if relay is None:
            # An answer that broke off while it was held is none to the client: another worker's may replace it.
            retryable = fault.retryable or isinstance(error, BrokenResponse | IdleTimeout)
            if not (retryable and course.retry(fault.label, failed=worker_id, blame=blame)):
                course.fail(fault.outcome, fault.error, blame=blame)
            return
        course.finish(fault.outcome, self._status, blame=blame)
        if relay.watch.streamed and not relay.watch.done:
            self._end_stream(relay, fault.error)
        else:
            course.sink.break_off()

    # -- held answers ------------------------------------------------------------------------------------------

    def _is_to_be_held(self, status: int, headers: Headers) -> bool:
        fault = fault_of_status(status)
        if fault is not None:
            return fault.retryable and self._course.may_retry()
        return status < 400 and self._course.account.cached_tokens is not None and not is_event_stream(headers)

    def _held_ended(self, answer: HeldAnswer) -> None:
        course, worker_id = self._course, self._worker_id
        fault = fault_of_status(answer.status)
        if fault is None:
            self._relay_corrected(answer)
            return
        course.services.telemetry.metrics.upstream_error(worker_id, fault.label)
        suspect = self._source if fault.blames_worker else None
        blame = self._blame() if fault.blames_worker else None
        if not course.retry(fault.label, failed=worker_id, suspect=suspect, blame=blame):
            course.relay_held(answer, fault.outcome, blame=blame)

    def _relay_corrected(self, answer: HeldAnswer) -> None:
        """End well with a whole answer whose cached tokens are the prefill worker's."""
        course, body = self._course, answer.body
        cached_tokens = course.account.cached_tokens
        assert cached_tokens is not None
        if body is None:
            error = api_errors.bad_gateway("The worker's answer is too large to relay.")
            course.fail(OutcomeKind.UPSTREAM_ERROR, error)
            return
        relay = self._begin_relay(answer.status, answer.headers)
        relay.pass_on(body, course.services.clock())
        corrected = set_cached_tokens(body, cached_tokens)
        headers = relayed_headers(answer.headers, course.request, course.decision, reframed=True)
        headers.append((b"content-length", b"%d" % len(corrected)))
        self._finish_by_status(relay.watch)
        course.sink.start(answer.status, headers)
        course.sink.write(corrected)
        course.sink.finish()

    # -- the end -----------------------------------------------------------------------------------------------

    def _begin_relay(self, status: int, headers: Headers) -> Relay:
        request, cached_tokens = self._course.request, self._course.account.cached_tokens
        self._status = status
        self._relay = Relay(request.dialect, headers, hide_usage=request.hide_usage, cached_tokens=cached_tokens)
        return self._relay

    def _note_pace(self, watch: AnswerWatch, now_s: float) -> None:
        course, services = self._course, self._course.services
        gaps_s = watch.take_itl_s()
        if gaps_s:
            itl = services.telemetry.metrics.itl(course.account.model)
            for gap_s in gaps_s:
                itl.observe(gap_s)
        if not self._streaming and (watch.first_content_s is not None or not watch.streamed):
            self._streaming = True
            services.core.observe(FirstToken(at_s=now_s, decision_id=course.decision.decision_id))

    def _cut_short(self, relay: Relay) -> None:
        """Tell the client of a stream that is well framed and yet not whole: something before the worker ended it."""
        course, worker_id = self._course, self._worker_id
        course.services.telemetry.metrics.upstream_error(worker_id, UpstreamErrorKind.BROKEN)
        course.finish(OutcomeKind.UPSTREAM_ERROR, self._status, blame=worker_id)
        self._end_stream(relay, api_errors.bad_gateway("The worker's stream ended before its answer did."))

    def _end_stream(self, relay: Relay, error: ApiError) -> None:
        # Half an event may be out, which a blank line ends; an edited stream is only ever out by whole events.
        gap = b"" if relay.edits else b"\n\n"
        self._course.sink.write(gap + self._course.request.dialect.sse_error(error))
        self._course.sink.finish()

    def _finish_by_status(self, watch: AnswerWatch) -> None:
        course, worker_id, status = self._course, self._worker_id, self._status
        fault = fault_of_status(status)
        if fault is not None:
            course.services.telemetry.metrics.upstream_error(worker_id, fault.label)
            course.finish(fault.outcome, status, blame=self._blame() if fault.blames_worker else None)
        elif status >= 400:
            course.finish(OutcomeKind.CLIENT_ERROR, status)
        elif watch.error is not None:
            course.services.telemetry.metrics.upstream_error(worker_id, UpstreamErrorKind.SERVER_ERROR)
            blame = self._blame() if watch.first_content_s is None else worker_id
            course.finish(OutcomeKind.UPSTREAM_ERROR, status, blame=blame)
        else:
            if self._source is not None:
                course.services.hand_overs.succeeded(self._source, worker_id)
            course.finish(OutcomeKind.OK, status)

    def _blame(self) -> WorkerId | None:
        """Whom an error of the worker's own counts against: behind a hand-over it may be the prefill worker's."""
        if self._source is None:
            return self._worker_id
        return self._course.services.hand_overs.failed(self._source, self._worker_id)
