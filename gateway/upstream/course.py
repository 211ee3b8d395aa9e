"""The journey as its legs see it.

The rule of this module: a leg says what its answer means, and the journey alone routes, sends and ends.
"""

from typing import Protocol

from gateway.core.types import Decision, OutcomeKind, WorkerId
from gateway.telemetry.labels import UpstreamErrorKind
from gateway.upstream.account import Account
from gateway.upstream.held import HeldAnswer
from gateway.upstream.services import ClientRequest, ClientSink, Services
from gateway.wire.errors import ApiError


class Course(Protocol):
    """What a leg may ask of its journey."""

    services: Services
    request: ClientRequest
    sink: ClientSink
    account: Account

    @property
    def decision(self) -> Decision:
        """The route that is followed now."""

    def may_retry(self) -> bool:
        """Whether attempts and budget are left for another worker."""

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
            suspect: is not asked again either, as long as somebody else can be.
            blame: whom the failure counts against.
        """

    def decode(self, kv_transfer_params: bytes | None) -> None:
        """Go on to the decode leg; without parameters the decode worker prefills the prompt itself."""

    def prefill_lost(self, *, blame: WorkerId | None) -> None:
        """Go on to the decode leg with nothing to fetch: from here on the route is a local one."""

    def finish(self, kind: OutcomeKind, status: int, *, blame: WorkerId | None = None) -> None:
        """End; the client's side is the caller's."""

    def fail(self, kind: OutcomeKind, error: ApiError, *, blame: WorkerId | None = None) -> None:
        """End with an answer of the gateway's own; nothing was sent before."""

    def relay_held(self, answer: HeldAnswer, kind: OutcomeKind, *, blame: WorkerId | None = None) -> None:
        """End with a worker's answer that was held back; nothing was sent before."""
