"""Stored responses by their id: GET and DELETE /v1/responses/{id}, its cancel and its input items.

The rule of this module: a response is the business of the worker that made it and of the tenant that asked for it. No
tenant learns of another's, so where there are several an id that is not known to be the caller's is not looked for.
"""

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from gateway.api.asgi import ClientDisconnected, Receive, Scope, Send, read_body, send_json
from gateway.api.auth import caller_of
from gateway.api.hot import AsgiSink, carry
from gateway.api.intake import Intake
from gateway.api.request_id import request_id_of
from gateway.core.record import record
from gateway.core.types import Outcome, OutcomeKind, RequestId, WorkerId
from gateway.upstream.journey import CLIENT_CLOSED_REQUEST
from gateway.upstream.lookup import Lookup
from gateway.upstream.services import Services
from gateway.wire import errors as api_errors
from gateway.wire.conversation_names import tenant_hash
from gateway.wire.errors import ApiError

PREFIX = "/v1/responses/"
METHODS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"": ("GET", "DELETE"), "/cancel": ("POST",), "/input_items": ("GET",)}
)
"""By what stands behind the id."""
MAX_ASKED = 8
"""Workers that are asked for a response of which nobody knows who made it."""

_ROUTE = re.compile(re.escape(PREFIX) + r"([^/]+)(/[^/]+)?")
_ID = re.compile(r"(?!\.)[A-Za-z0-9._:~@=+,-]{1,256}")
"""What an id may be; one of other characters is no worker's, and its path might be read in two ways."""


@record
class StoredRoute:
    """One request's path, taken apart."""

    response_id: str
    methods: tuple[str, ...]
    """That the route takes."""


def stored_route(path: str) -> StoredRoute | None:
    """The route of a stored response; None for every other path."""
    found = _ROUTE.fullmatch(path)
    methods = METHODS.get(found[2] or "") if found else None
    return None if found is None or methods is None else StoredRoute(response_id=found[1], methods=methods)


@dataclass(frozen=True, slots=True, kw_only=True)
class Whereabouts:
    """Where responses are."""

    home: Callable[[str, int], WorkerId | None]
    """(response id, hash of the tenant) -> the worker that keeps it, as far as is known."""
    decoders: Callable[[], Sequence[WorkerId]]
    """Workers that may have made any, those that are up first."""
    has_tenants: Callable[[], bool]
    """Whether callers must be told apart."""
    find: Callable[[str, int], Awaitable[None]] | None = None
    """(response id, hash of the tenant): asks the other gateways, so that `home` may know it; None where none share."""

    def is_hidden(self, response_id: str, tenant: int) -> bool:
        """Whether a response may be another tenant's."""
        return self.has_tenants() and self.home(response_id, tenant) is None


class StoredResponses:
    """Answers the routes of stored responses.

    Args:
        services: what requests share.
        intake: makes requests ready to be sent.
        whereabouts: who is to be asked.
        max_body_bytes: larger bodies are refused with 413.
    """

    def __init__(self, services: Services, intake: Intake, whereabouts: Whereabouts, *, max_body_bytes: int) -> None:
        self._services = services
        self._intake = intake
        self._whereabouts = whereabouts
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, whose path has a `stored_route`."""
        arrived_s = self._services.clock()
        request_id = request_id_of(scope["headers"])
        route = stored_route(scope["path"])
        assert route is not None
        if scope["method"] not in route.methods:
            await _refuse(send, api_errors.method_not_allowed(scope["method"], allow=route.methods), request_id)
            return
        try:
            body = await read_body(scope, receive, self._max_body_bytes)
        except ClientDisconnected:
            self._record(request_id, OutcomeKind.CANCELLED, CLIENT_CLOSED_REQUEST, arrived_s)
            return
        refused = body if isinstance(body, ApiError) else await self._missing(scope, route.response_id)
        if refused is not None:
            self._record(request_id, OutcomeKind.CLIENT_ERROR, refused.status, arrived_s)
            await _refuse(send, refused, request_id)
            return
        assert isinstance(body, bytes)
        request = self._intake.relayed(scope, body, request_id, arrived_s, method=scope["method"].encode())
        home = self._whereabouts.home(route.response_id, tenant_hash(caller_of(scope)))
        sink = AsgiSink()
        lookup = sink.journey = Lookup(
            self._services,
            request,
            sink,
            workers=[home] if home is not None else self._whereabouts.decoders()[:MAX_ASKED],
            missing=api_errors.response_not_found(route.response_id) if home is None else None,
        )
        lookup.begin()
        await carry(lookup, sink, receive, send)

    async def _missing(self, scope: Scope, response_id: str) -> ApiError | None:
        """Why no worker need be asked; None where one must."""
        tenant, where = tenant_hash(caller_of(scope)), self._whereabouts
        if _ID.fullmatch(response_id):
            if where.find is not None and where.home(response_id, tenant) is None:
                await where.find(response_id, tenant)
            if not where.is_hidden(response_id, tenant):
                return None
        return api_errors.response_not_found(response_id)

    def _record(self, request_id: RequestId, kind: OutcomeKind, status: int, arrived_s: float) -> None:
        outcome = Outcome(kind=kind, status=status, duration_s=self._services.clock() - arrived_s)
        self._services.telemetry.finished(None, outcome, request_id=request_id, model=None)


async def _refuse(send: Send, error: ApiError, request_id: RequestId) -> None:
    headers = [*api_errors.response_headers(error), (b"x-request-id", request_id.encode())]
    await send_json(send, error.status, headers, api_errors.body(error))
