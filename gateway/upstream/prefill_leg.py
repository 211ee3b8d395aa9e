"""The prefill leg: one worker prefills the prompt and says where another finds the KV blocks.

The rule of this module: of the answer only its transfer parameters and its usage are looked at. Whatever goes wrong,
another prefill worker is asked or the decode worker prefills by itself; only a client's own error is the answer.
"""

from gateway.core.events import Prefilled
from gateway.core.types import OutcomeKind, WorkerId
from gateway.telemetry.labels import UpstreamErrorKind
from gateway.upstream.course import Course
from gateway.upstream.errors import UpstreamError
from gateway.upstream.faults import Fault, fault_of_error, fault_of_status
from gateway.upstream.held import HeldAnswer
from gateway.upstream.services import Headers
from gateway.wire.disagg import nixl


class PrefillLeg:
    """Holds the prefill worker's whole answer and says what follows from it."""

    __slots__ = ("_answer", "_began_s", "_course", "_worker_id")

    watch = None
    """Nothing of this leg is for the client."""

    def __init__(self, course: Course, worker_id: WorkerId) -> None:
        self._course = course
        self._worker_id = worker_id
        self._began_s = course.services.clock()
        self._answer: HeldAnswer | None = None

    def on_head(self, status: int, headers: Headers, /) -> None:
        """Begin to hold."""
        self._answer = HeldAnswer(status, headers)

    def on_body(self, data: bytes, /) -> None:
        """Hold."""
        assert self._answer is not None
        self._answer.add(data)

    def on_lull(self) -> None:
        """Hold on."""

    def on_end(self) -> None:
        """Go on to the decode leg, or elsewhere."""
        answer = self._answer
        assert answer is not None
        fault = fault_of_status(answer.status)
        if fault is not None:
            self._lost(fault)
        elif answer.status >= 400:
            self._course.relay_held(answer, OutcomeKind.CLIENT_ERROR)
        else:
            self._prefilled(answer)

    def on_error(self, error: UpstreamError, /) -> None:
        """Go elsewhere."""
        self._lost(fault_of_error(error))

    def _prefilled(self, answer: HeldAnswer) -> None:
        course, services = self._course, self._course.services
        now_s = services.clock()
        course.account.prefill_leg_s = now_s - self._began_s
        found = nixl.parse_prefill_answer(answer.body or b"")
        if found.kv_transfer_params is None:
            # The worker kept no blocks (its first token ended the answer, or it runs without a connector).
            services.telemetry.metrics.upstream_error(self._worker_id, UpstreamErrorKind.PROTOCOL)
            course.prefill_lost(blame=None)
            return
        services.core.observe(Prefilled(at_s=now_s, decision_id=course.decision.decision_id))
        course.account.cached_tokens = (found.usage.cached_tokens if found.usage else None) or 0
        course.decode(found.kv_transfer_params)

    def _lost(self, fault: Fault) -> None:
        course, worker_id = self._course, self._worker_id
        course.services.telemetry.metrics.upstream_error(worker_id, fault.label)
        blame = worker_id if fault.blames_worker else None
        if not (fault.retryable and course.retry(fault.label, failed=worker_id, blame=blame)):
            course.prefill_lost(blame=blame)
