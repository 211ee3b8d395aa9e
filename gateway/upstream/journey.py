"""One request's journey: decide, dispatch, relay, and end exactly once.

The rule of this module: a state machine of callbacks without tasks, so that it serves an ASGI handler and a raw
protocol alike. Whatever happens, there is one terminal event, one released reservation, one metric and one record.
What an answer means is said by its leg (`prefill_leg`, `decode_leg`); routing, sending and ending are here.

    [waiting] -> routed -> [prefill leg] -> decode leg -> relaying -> ended
                    ^___________|______________|   another worker, while the client has seen nothing and the budget
                                                   lasts; who was routed once never waits
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import assert_never

from gateway.core.events import Dispatched, PrefillLost
from gateway.core.path.eligibility import without_prefill
from gateway.core.types import Decision, OutcomeKind, Refusal, WorkerId
from gateway.core.waiting import Ticket, Wait
from gateway.telemetry.labels import UpstreamErrorKind
from gateway.upstream.account import Account
from gateway.upstream.answers import answer_error, relayed_headers
from gateway.upstream.decode_leg import DecodeLeg
from gateway.upstream.errors import PoolClosed
from gateway.upstream.exchange import Exchange
from gateway.upstream.heads import UnsafeHead
from gateway.upstream.held import HeldAnswer
from gateway.upstream.prefill_leg import PrefillLeg
from gateway.upstream.sending import send_decode, send_prefill
from gateway.upstream.services import ClientRequest, ClientSink, Services
from gateway.wire import errors as api_errors
from gateway.wire.errors import ApiError
from gateway.wire.peeked import Peeked

CLIENT_CLOSED_REQUEST = 499


class Journey:
    """Carries one peeked request to its end. Make it, call `begin`, and pass on what the client does."""

    def __init__(self, services: Services, request: ClientRequest, peeked: Peeked, sink: ClientSink) -> None:
        self.services = services
        self.request = request
        self.sink = sink
        self.account = Account(services, request, peeked)
        self._excluded: frozenset[WorkerId] = frozenset()
        self._ticket: Ticket | None = None
        """While it waits."""
        self._decision: Decision | None = None
        self._leg: PrefillLeg | DecodeLeg | None = None
        self._exchange: Exchange | None = None

    # -- what the client and the fleet do ----------------------------------------------------------------------

    def begin(self) -> None:
        """Decide and send the first leg."""
        self.services.budget.saw_request()
        routed = self.account.decide(exclude=self._excluded, attempt=1)
        if isinstance(routed, Wait):
            self._ticket = routed.ticket
            self.services.expect(routed.ticket, self._routed)
        else:
            self._routed(routed)

    def _routed(self, routed: Decision | Refusal) -> None:
        self._ticket = None
        match routed:
            case Decision():
                self.account.open()
                self._follow(routed)
            case Refusal():
                error = api_errors.from_refusal(routed)
                self.account.refuse(routed, error.status)
                answer_error(self.sink, error, self.request, None)
            case _:
                assert_never(routed)

    def client_gone(self) -> None:
        """The client left: stop upstream. A prefill leg is stopped too: its transfer begins only with the decode."""
        if self._ticket is not None:
            self.services.core.give_up(self._ticket)
            self._ticket = None
            self.account.leave(CLIENT_CLOSED_REQUEST)
        elif not self.account.closed:
            self.finish(OutcomeKind.CANCELLED, CLIENT_CLOSED_REQUEST)

    def pause(self) -> None:
        """The client reads slower than the worker writes."""
        if self._exchange is not None:
            self._exchange.pause_reading()

    def resume(self) -> None:
        """The client has caught up."""
        if self._exchange is not None:
            self._exchange.resume_reading()

    def decode_worker_lost(self) -> None:
        """The decode worker went down under the prefill leg: nobody would fetch that KV, so stop and go elsewhere."""
        assert self._exchange is not None
        self._exchange.abort()
        if not self.retry(UpstreamErrorKind.CONNECT, failed=self.decision.decode_worker):
            error = api_errors.unavailable("The worker that was to answer went down.", retry_after_s=1.0)
            self.fail(OutcomeKind.UPSTREAM_ERROR, error)

    # -- the legs ----------------------------------------------------------------------------------------------

    @property
    def decision(self) -> Decision:
        """The route that is followed now."""
        assert self._decision is not None
        return self._decision

    def _follow(self, decision: Decision) -> None:
        self._decision = decision
        if decision.prefill_worker is not None:
            self._prefill(decision.prefill_worker)
        else:
            self.decode(None)
        if not self.account.closed:
            self.services.core.observe(Dispatched(at_s=self.services.clock(), decision_id=decision.decision_id))

    def _prefill(self, worker_id: WorkerId) -> None:
        leg = self._leg = PrefillLeg(self, worker_id)
        self._start(partial(send_prefill, self.services, self.request, self.decision, leg))
        if not self.account.closed:
            self.services.pending.enter(self, self.decision.decode_worker)

    def decode(self, kv_transfer_params: bytes | None) -> None:
        """Go on to the decode leg; without parameters the decode worker prefills the prompt itself."""
        self.services.pending.leave(self)
        source = None if kv_transfer_params is None else self.decision.prefill_worker
        leg = self._leg = DecodeLeg(self, source)
        self._start(partial(send_decode, self.services, self.request, self.decision, leg, kv_transfer_params))

    def prefill_lost(self, *, blame: WorkerId | None) -> None:
        """Go on to the decode leg with nothing to fetch: from here on the route is a local one."""
        lost = PrefillLost(at_s=self.services.clock(), decision_id=self.decision.decision_id, blame=blame)
        self.services.core.observe(lost)
        self._decision = without_prefill(self.decision)
        self.decode(None)

    def _start(self, send: Callable[[], Exchange]) -> None:
        try:
            self._exchange = send()
        except UnsafeHead as error:
            self.fail(OutcomeKind.CLIENT_ERROR, api_errors.bad_request(f"A header cannot be forwarded: {error}."))
        except ValueError:
            # Python's recursion limit counts our own frames too: what `peek` could just read cannot be edited here.
            self.fail(OutcomeKind.CLIENT_ERROR, api_errors.bad_request("The request body is nested too deeply."))
        except PoolClosed:
            self.fail(OutcomeKind.UPSTREAM_ERROR, api_errors.unavailable("The gateway is shutting down."))

    # -- another worker ----------------------------------------------------------------------------------------

    def may_retry(self) -> bool:
        """Whether attempts and budget are left for another worker."""
        return self.decision.attempt < self.services.max_attempts and self.services.budget.allows

    def retry(
        self,
        cause: UpstreamErrorKind,
        *,
        failed: WorkerId,
        suspect: WorkerId | None = None,
        blame: WorkerId | None = None,
    ) -> bool:
        """Route the request anew without `failed`; False, and nothing changed, where that is not possible.

        Args:
            cause: why the attempt is given up, for the metrics.
            failed: is not asked again for this request.
            suspect: is not asked again either; where nobody else is left, one of the two may be.
            blame: whom the failure counts against.
        """
        given_up, decision_s = self.decision, self.account.decision_s
        if not self.may_retry():
            return False
        for excluded in self._exclusions(failed, suspect):
            routed = self.account.decide(exclude=excluded, attempt=given_up.attempt + 1)
            if isinstance(routed, Decision):
                break
        else:
            self.account.decision_s = decision_s
            return False
        self.services.budget.spend()
        self.services.pending.leave(self)
        self.services.telemetry.metrics.retried(given_up, cause, decision_s=decision_s)
        self.services.core.abort(given_up.decision_id, self.services.clock(), blame=blame)
        self._excluded = excluded
        self.account.prefill_leg_s = self.account.cached_tokens = None
        self._follow(routed)
        return True

    def _exclusions(self, failed: WorkerId, suspect: WorkerId | None) -> Iterator[frozenset[WorkerId]]:
        """Whom not to ask, the best first: of two suspects one is well, so asking it beats giving up."""
        if suspect is None:
            yield self._excluded | {failed}
        else:
            yield self._excluded | {failed, suspect}
            yield self._excluded | {failed}
            yield self._excluded | {suspect}

    # -- the end -----------------------------------------------------------------------------------------------

    def fail(self, kind: OutcomeKind, error: ApiError, *, blame: WorkerId | None = None) -> None:
        """End with an answer of the gateway's own; nothing was sent before."""
        self.finish(kind, error.status, blame=blame)
        answer_error(self.sink, error, self.request, self.decision)

    def relay_held(self, answer: HeldAnswer, kind: OutcomeKind, *, blame: WorkerId | None = None) -> None:
        """End with a worker's answer that was held back; nothing was sent before."""
        body = answer.body
        if body is None:
            self.fail(kind, api_errors.bad_gateway("The worker's error answer is too large to relay."), blame=blame)
            return
        self.finish(kind, answer.status, blame=blame)
        self.sink.start(answer.status, relayed_headers(answer.headers, self.request, self.decision))
        self.sink.write(body)
        self.sink.finish()

    def finish(self, kind: OutcomeKind, status: int, *, blame: WorkerId | None = None) -> None:
        """The one terminal event of a routed request; the client's side is the caller's."""
        self.services.pending.leave(self)
        if self._exchange is not None:
            self._exchange.abort()
        watch = self._leg.watch if self._leg is not None else None
        self.account.close(self.decision, kind, status, watch=watch, blame=blame)
