"""One request's journey: decide, dispatch, relay, and end exactly once.

The rule of this module: a state machine of callbacks without tasks, so that it serves an ASGI handler and a raw
protocol alike. Whatever happens, there is one terminal event, one released reservation, one metric and one record.

    routed -> [prefill leg] -> decode leg -> relaying -> ended
        ^___________|______________|   another worker, while the client has seen nothing and the budget lasts
"""

from typing import assert_never

from gateway.core.events import Dispatched, FirstToken, Prefilled, PrefillLost
from gateway.core.types import Decision, OutcomeKind, Path, Refusal, WorkerId
from gateway.telemetry.labels import UpstreamErrorKind
from gateway.upstream.account import Account
from gateway.upstream.answers import answer_error, relayed_headers
from gateway.upstream.errors import BrokenResponse, IdleTimeout, PoolClosed, UpstreamError
from gateway.upstream.exchange import Exchange
from gateway.upstream.faults import Fault, fault_of_error, fault_of_status
from gateway.upstream.heads import UnsafeHead, UpstreamRequest
from gateway.upstream.legs import DecodeLeg, HeldAnswer, PrefillLeg
from gateway.upstream.origin import Origin
from gateway.upstream.relay import Relay
from gateway.upstream.services import ClientRequest, ClientSink, Headers, Services
from gateway.upstream.watch import AnswerWatch, is_event_stream
from gateway.wire import errors as api_errors
from gateway.wire.disagg import nixl
from gateway.wire.errors import ApiError
from gateway.wire.peeked import Peeked
from gateway.wire.usage_edit import set_cached_tokens

CLIENT_CLOSED_REQUEST = 499
MAX_UPSTREAM_ID_CHARS = 128


class Journey:
    """Carries one peeked request to its end. Make it, call `begin`, and pass on what the client does."""

    def __init__(self, services: Services, request: ClientRequest, peeked: Peeked, sink: ClientSink) -> None:
        self._services = services
        self._request = request
        self._peeked = peeked
        self._sink = sink
        self._excluded: frozenset[WorkerId] = frozenset()
        self._decision: Decision | None = None
        self._exchange: Exchange | None = None
        self._relay: Relay | None = None
        self._status = 0
        self._account = Account(services, request, peeked.facts, peeked.raw_model)
        self._streaming = False
        self._prefill_began_s = 0.0

    # -- what the client does --------------------------------------------------------------------------------

    def begin(self) -> None:
        """Decide and send the first leg."""
        self._services.budget.saw_request()
        routed = self._account.decide(exclude=self._excluded, attempt=1)
        match routed:
            case Decision():
                self._account.open()
                self._decision = routed
                self._dispatch(routed)
            case Refusal():
                error = api_errors.from_refusal(routed)
                self._account.refuse(routed, error.status)
                answer_error(self._sink, error, self._request, None)
            case _:
                assert_never(routed)

    def client_gone(self) -> None:
        """The client left: stop upstream. A prefill leg is stopped too: its transfer begins only with the decode."""
        if not self._account.closed:
            self._finish(OutcomeKind.CANCELLED, CLIENT_CLOSED_REQUEST)

    def pause(self) -> None:
        """The client reads slower than the worker writes."""
        if self._exchange is not None:
            self._exchange.pause_reading()

    def resume(self) -> None:
        """The client has caught up."""
        if self._exchange is not None:
            self._exchange.resume_reading()

    # -- dispatch ----------------------------------------------------------------------------------------------

    def _dispatch(self, decision: Decision) -> None:
        if decision.prefill_worker is not None:
            self._send_prefill(decision)
        else:
            self._send_decode(decision, None)
        if not self._account.closed:
            self._services.core.observe(Dispatched(at_s=self._services.clock(), decision_id=decision.decision_id))

    def _send_prefill(self, decision: Decision) -> None:
        assert decision.prefill_worker is not None
        self._prefill_began_s = self._services.clock()
        leg = PrefillLeg(self._prefill_answered, self._prefill_failed)
        try:
            body = nixl.prefill_body(self._request.body, self._peeked.facts.endpoint)
        except ValueError:
            self._refuse_body()
        else:
            self._send(decision.prefill_worker, body, leg)

    def _send_decode(self, decision: Decision, kv_transfer_params: bytes | None) -> None:
        body = self._request.body
        if kv_transfer_params is not None or self._peeked.sent_kv_transfer_params:
            try:
                body = nixl.decode_body(body, kv_transfer_params)
            except ValueError:
                self._refuse_body()
                return
        self._send(decision.decode_worker, body, DecodeLeg(self))

    def _refuse_body(self) -> None:
        # Python's recursion limit counts our own frames too: what `peek` could just read cannot be edited down here.
        self._fail(OutcomeKind.CLIENT_ERROR, api_errors.bad_request("The request body is nested too deeply."))

    def _send(self, worker_id: WorkerId, body: bytes, leg: PrefillLeg | DecodeLeg) -> None:
        services, request = self._services, self._request
        limits = services.prefill_limits if isinstance(leg, PrefillLeg) else services.decode_limits
        outgoing = UpstreamRequest(
            method=request.method,
            target=request.target,
            headers=request.headers,
            own_headers=((b"x-request-id", self._upstream_id()), *request.own_headers),
            body=body,
        )
        origin = self._origin(worker_id)
        try:
            self._exchange = services.pool.start(origin, outgoing, leg, limits)
        except UnsafeHead as error:
            self._fail(OutcomeKind.CLIENT_ERROR, api_errors.bad_request(f"A header cannot be forwarded: {error}."))
        except PoolClosed:
            self._fail(OutcomeKind.UPSTREAM_ERROR, api_errors.unavailable("The gateway is shutting down."))

    def _origin(self, worker_id: WorkerId) -> Origin:
        decision = self._current()
        in_one_leg = decision.path is Path.REMOTE and decision.prefill_worker is None
        return (self._services.remote_origins if in_one_leg else self._services.origins)[worker_id]

    def _upstream_id(self) -> bytes:
        # The engine keys KV transfers by this id, so it must be unique even where clients repeat theirs.
        assert self._decision is not None
        unique = f"-{self._decision.decision_id}"
        return (self._request.request_id[: MAX_UPSTREAM_ID_CHARS - len(unique)] + unique).encode("latin-1")

    # -- the prefill leg -----------------------------------------------------------------------------------------

    def _prefill_answered(self, answer: HeldAnswer) -> None:
        self._exchange = None
        fault = fault_of_status(answer.status)
        if fault is not None:
            self._prefill_lost(fault)
        elif answer.status >= 400:
            self._relay_held(answer, OutcomeKind.CLIENT_ERROR)
        else:
            self._prefilled(answer)

    def _prefill_failed(self, error: UpstreamError) -> None:
        self._exchange = None
        self._prefill_lost(fault_of_error(error))

    def _prefilled(self, answer: HeldAnswer) -> None:
        decision, services = self._current(), self._services
        now_s = services.clock()
        self._account.prefill_leg_s = now_s - self._prefill_began_s
        found = nixl.parse_prefill_answer(answer.body or b"")
        if found.kv_transfer_params is None:
            # The worker kept no blocks (its first token ended the answer, or it runs without a connector).
            assert decision.prefill_worker is not None
            services.telemetry.metrics.upstream_error(decision.prefill_worker, UpstreamErrorKind.PROTOCOL)
            services.core.observe(PrefillLost(at_s=now_s, decision_id=decision.decision_id, blame=None))
        else:
            services.core.observe(Prefilled(at_s=now_s, decision_id=decision.decision_id))
            self._account.cached_tokens = (found.usage.cached_tokens if found.usage else None) or 0
        self._send_decode(decision, found.kv_transfer_params)

    def _prefill_lost(self, fault: Fault) -> None:
        decision = self._current()
        worker_id = decision.prefill_worker
        assert worker_id is not None
        self._services.telemetry.metrics.upstream_error(worker_id, fault.label)
        if fault.retryable and self._retry(worker_id, fault):
            return
        # No other prefill worker may be asked: the decode worker prefills the prompt itself.
        blame = worker_id if fault.blames_worker else None
        self._services.core.observe(
            PrefillLost(at_s=self._services.clock(), decision_id=decision.decision_id, blame=blame)
        )
        self._send_decode(decision, None)

    # -- the decode leg ------------------------------------------------------------------------------------------

    def wants_held(self, status: int, headers: Headers) -> bool:
        """Hold an answer that another worker's may replace, and a whole one whose cached tokens must be set right."""
        fault = fault_of_status(status)
        if fault is not None:
            return fault.retryable and self._may_retry()
        return status < 400 and self._account.cached_tokens is not None and not is_event_stream(headers)

    def decode_held(self, answer: HeldAnswer) -> None:
        """Ask another worker, or relay the answer after all."""
        self._exchange = None
        fault = fault_of_status(answer.status)
        if fault is None:
            self._relay_corrected(answer)
            return
        worker_id = self._current().decode_worker
        self._services.telemetry.metrics.upstream_error(worker_id, fault.label)
        if not self._retry(worker_id, fault):
            self._relay_held(answer, fault.outcome, blame=worker_id if fault.blames_worker else None)

    def decode_began(self, status: int, headers: Headers) -> None:
        """Start the client's answer."""
        self._status = status
        relay = self._relay = self._new_relay(headers)
        reframed = relay.reframes
        self._sink.start(status, relayed_headers(headers, self._request, self._current(), reframed=reframed))

    def decode_body(self, data: bytes) -> None:
        """Pass the bytes on and look at them."""
        assert self._relay is not None
        now_s = self._services.clock()
        passed = self._relay.pass_on(data, now_s)
        if passed:
            self._sink.write(passed)
        self._note_pace(self._relay.watch, now_s)

    def decode_ended(self) -> None:
        """The answer is whole, whatever it says, unless it is a stream that ends without its end."""
        self._exchange = None
        assert self._relay is not None
        watch = self._relay.watch
        rest = self._relay.finish(self._services.clock())
        if self._status < 400 and watch.cut_short:
            self._cut_short()
            return
        if rest:
            self._sink.write(rest)
        self._finish_by_status(watch)
        self._sink.finish()

    def decode_failed(self, error: UpstreamError) -> None:
        """Ask another worker, or tell the client in the way that is still open."""
        self._exchange = None
        fault = fault_of_error(error)
        worker_id = self._current().decode_worker
        self._services.telemetry.metrics.upstream_error(worker_id, fault.label)
        blame = worker_id if fault.blames_worker else None
        if self._relay is None:
            # An answer that broke off while it was held is none to the client: another worker's may replace it.
            retryable = fault.retryable or isinstance(error, BrokenResponse | IdleTimeout)
            if not (retryable and self._retry(worker_id, fault)):
                self._fail(fault.outcome, fault.error, blame=blame)
            return
        self._finish(fault.outcome, self._status, blame=blame)
        if self._relay.watch.streamed and not self._relay.watch.done:
            self._end_stream(self._relay, fault.error)
        else:
            self._sink.break_off()

    def _cut_short(self) -> None:
        """Tell the client of a stream that is well framed and yet not whole: something before the worker ended it."""
        assert self._relay is not None
        worker_id = self._current().decode_worker
        self._services.telemetry.metrics.upstream_error(worker_id, UpstreamErrorKind.BROKEN)
        self._finish(OutcomeKind.UPSTREAM_ERROR, self._status, blame=worker_id)
        self._end_stream(self._relay, api_errors.bad_gateway("The worker's stream ended before its answer did."))

    def _end_stream(self, relay: Relay, error: ApiError) -> None:
        # Half an event may be out, which a blank line ends; an edited stream is only ever out by whole events.
        gap = b"" if relay.edits else b"\n\n"
        self._sink.write(gap + self._request.dialect.sse_error(error))
        self._sink.finish()

    def _new_relay(self, headers: Headers) -> Relay:
        cached_tokens = self._account.cached_tokens
        return Relay(self._request.dialect, headers, hide_usage=self._request.hide_usage, cached_tokens=cached_tokens)

    def _note_pace(self, watch: AnswerWatch, now_s: float) -> None:
        gaps_s = watch.take_itl_s()
        if gaps_s:
            itl = self._services.telemetry.metrics.itl(self._peeked.raw_model)
            for gap_s in gaps_s:
                itl.observe(gap_s)
        if not self._streaming and (watch.first_content_s is not None or not watch.streamed):
            self._streaming = True
            self._services.core.observe(FirstToken(at_s=now_s, decision_id=self._current().decision_id))

    def _finish_by_status(self, watch: AnswerWatch) -> None:
        worker_id = self._current().decode_worker
        fault = fault_of_status(self._status)
        if fault is not None:
            self._services.telemetry.metrics.upstream_error(worker_id, fault.label)
            self._finish(fault.outcome, self._status, blame=worker_id if fault.blames_worker else None)
        elif self._status >= 400:
            self._finish(OutcomeKind.CLIENT_ERROR, self._status)
        elif watch.error is not None:
            self._services.telemetry.metrics.upstream_error(worker_id, UpstreamErrorKind.SERVER_ERROR)
            self._finish(OutcomeKind.UPSTREAM_ERROR, self._status, blame=worker_id)
        else:
            self._finish(OutcomeKind.OK, self._status)

    # -- another worker ------------------------------------------------------------------------------------------

    def _may_retry(self) -> bool:
        return self._current().attempt < self._services.max_attempts and self._services.budget.allows

    def _retry(self, failed: WorkerId, fault: Fault) -> bool:
        """Route the request anew without `failed`; False, and nothing changed, where that is not possible."""
        given_up = self._current()
        if not self._may_retry():
            return False
        decision_s = self._account.decision_s
        excluded = self._excluded | {failed}
        routed = self._account.decide(exclude=excluded, attempt=given_up.attempt + 1)
        if isinstance(routed, Refusal):
            self._account.decision_s = decision_s
            return False
        self._services.budget.spend()
        self._services.telemetry.metrics.retried(given_up, fault.label, decision_s=decision_s)
        blame = failed if fault.blames_worker else None
        self._services.core.abort(given_up.decision_id, self._services.clock(), blame=blame)
        self._decision, self._excluded = routed, excluded
        self._account.prefill_leg_s = self._account.cached_tokens = None
        self._dispatch(routed)
        return True

    # -- the end -------------------------------------------------------------------------------------------------

    def _fail(self, kind: OutcomeKind, error: ApiError, *, blame: WorkerId | None = None) -> None:
        """End with an answer of the gateway's own; nothing was sent before."""
        self._finish(kind, error.status, blame=blame)
        answer_error(self._sink, error, self._request, self._current())

    def _relay_held(self, answer: HeldAnswer, kind: OutcomeKind, *, blame: WorkerId | None = None) -> None:
        """End with a worker's answer that was held back; nothing was sent before."""
        decision = self._current()
        body = answer.body
        if body is None:
            self._fail(kind, api_errors.bad_gateway("The worker's error answer is too large to relay."), blame=blame)
            return
        self._finish(kind, answer.status, blame=blame)
        self._sink.start(answer.status, relayed_headers(answer.headers, self._request, decision))
        self._sink.write(body)
        self._sink.finish()

    def _relay_corrected(self, answer: HeldAnswer) -> None:
        """End well with a whole answer whose cached tokens are the prefill worker's."""
        cached_tokens, body = self._account.cached_tokens, answer.body
        assert cached_tokens is not None
        if body is None:
            self._fail(OutcomeKind.UPSTREAM_ERROR, api_errors.bad_gateway("The worker's answer is too large to relay."))
            return
        self._status = answer.status
        relay = self._relay = self._new_relay(answer.headers)
        relay.pass_on(body, self._services.clock())
        corrected = set_cached_tokens(body, cached_tokens)
        headers = relayed_headers(answer.headers, self._request, self._current(), reframed=True)
        headers.append((b"content-length", b"%d" % len(corrected)))
        self._finish_by_status(relay.watch)
        self._sink.start(answer.status, headers)
        self._sink.write(corrected)
        self._sink.finish()

    def _finish(self, kind: OutcomeKind, status: int, *, blame: WorkerId | None = None) -> None:
        """The one terminal event of a routed request."""
        if self._exchange is not None:
            self._exchange.abort()
            self._exchange = None
        watch = self._relay.watch if self._relay else None
        self._account.close(self._current(), kind, status, watch=watch, blame=blame)

    def _current(self) -> Decision:
        assert self._decision is not None
        return self._decision
