"""From an HTTP request to one that can travel.

The rule of this module: all that the gateway changes of a client's request is changed here: an alias becomes its
model, a stream is asked for its usage, keys that are the gateway's own stay here, a sidecar's header is taken off.
Everything else goes on as it came.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from gateway.api.asgi import Scope
from gateway.api.auth import IDENTITY, caller_of
from gateway.api.live import Live
from gateway.core.output_length.carried import PromptReader
from gateway.core.record import record
from gateway.core.types import Endpoint, RequestFacts, RequestId, WorkerId
from gateway.upstream.services import ClientRequest, Headers
from gateway.wire.conversation_names import NAMELESS, ConversationReader
from gateway.wire.dialects import RESPONSES, ROUTES, Dialect
from gateway.wire.errors import ApiError, bad_request, previous_response_not_found
from gateway.wire.peeked import Peeked
from gateway.wire.usage_edit import inject_usage

KEY_HEADERS = frozenset({b"authorization", b"x-api-key"})
CHUNKED_USAGE = frozenset({Endpoint.CHAT, Endpoint.COMPLETIONS})
"""Their streams tell usage only when asked; the other dialects always do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SidecarMode:
    """How a request names its prefill worker."""

    header: bytes
    """In lower case; it never goes on to a worker."""
    offer: Callable[[str], WorkerId | None]
    """The worker at host:port, or None where it is not allowed."""


@record
class _Readers:
    """What is read of a request beside its facts."""

    lengths: PromptReader | None
    """For the output-length model."""
    conversation: ConversationReader | None

    def unless_renamed(self, aliases: Mapping[str, str]) -> "_Readers":
        """The same, for a request whose model may be an alias: lengths are read under the model's own name alone."""
        if self.lengths is None or not aliases:
            return self
        return _Readers(lengths=replace(self.lengths, renamed=aliases), conversation=self.conversation)

    def peek(self, dialect: Dialect, body: bytes, headers: Headers, request_id: RequestId) -> Peeked | ApiError:
        """Look at a request."""
        return dialect.peek(
            body, request_id=request_id, headers=headers, reader=self.lengths, conversation=self.conversation
        )


class Intake:
    """Makes requests ready to be sent.

    Args:
        live: the settings in force.
        sidecar: None where the gateway is no sidecar.
        reader: what reads prompts for the output-length model of the policy in force; None while it has none.
        hides: whether a response, by its id and the hash of who asks, may be another tenant's.
    """

    def __init__(
        self,
        live: Live,
        *,
        sidecar: SidecarMode | None = None,
        reader: Callable[[], PromptReader | None] = lambda: None,
        hides: Callable[[str, int], bool] = lambda response_id, tenant: False,  # noqa: ARG005
    ) -> None:
        self._live = live
        self._sidecar = sidecar
        self._reader = reader
        self._hides = hides

    def take(
        self, scope: Scope, body: bytes, request_id: RequestId, arrived_s: float
    ) -> tuple[ClientRequest, Peeked] | ApiError:
        """The request as the workers will get it, and what was read of it; or why it cannot be routed."""
        dialect = ROUTES[scope["path"]]
        headers: Headers = scope["headers"]
        named = self._with_model(dialect, body, headers, request_id, self._readers_for(scope))
        if isinstance(named, ApiError):
            return named
        body, peeked = named
        offered = self._offered(headers)
        if isinstance(offered, ApiError):
            return offered
        if offered is not None:
            peeked = replace(peeked, facts=replace(peeked.facts, prefill_from=offered))
        hide_usage = dialect.endpoint in CHUNKED_USAGE and peeked.stream and not peeked.include_usage
        sent = inject_usage(body) if hide_usage else body
        return self.relayed(scope, sent, request_id, arrived_s, dialect=dialect, hide_usage=hide_usage), peeked

    def hidden(self, facts: RequestFacts) -> ApiError | None:
        """Why a request may not go on from the response that it names; None where it names none, and where it may."""
        said = facts.conversation
        if said is None or said.response_id is None or not self._hides(said.response_id, said.tenant):
            return None
        return previous_response_not_found(said.response_id)

    def relayed(
        self,
        scope: Scope,
        body: bytes,
        request_id: RequestId,
        arrived_s: float,
        *,
        method: bytes = b"POST",
        dialect: Dialect = RESPONSES,
        hide_usage: bool = False,
    ) -> ClientRequest:
        """A request as the workers will get it, with this body; without a dialect, one for a stored response."""
        return ClientRequest(
            request_id=request_id,
            method=method,
            target=_target(scope),
            headers=self._forwarded(scope["headers"], has_own_key=IDENTITY in scope),
            body=body,
            arrived_s=arrived_s,
            dialect=dialect,
            hide_usage=hide_usage,
            own_headers=self._own_headers(),
        )

    def _with_model(
        self, dialect: Dialect, body: bytes, headers: Headers, request_id: RequestId, readers: _Readers
    ) -> tuple[bytes, Peeked] | ApiError:
        aliases = self._live.aliases
        peeked = readers.unless_renamed(aliases).peek(dialect, body, headers, request_id)
        if isinstance(peeked, ApiError):
            return peeked
        asked = peeked.raw_model
        if not asked:
            return self._by_default(body, peeked)
        target = aliases.get(asked)
        if target is None:
            return body, peeked
        # Read again under the model's own name, so that its prompts share one prefix index.
        body = dialect.retarget(body, headers, target)
        again = readers.peek(dialect, body, headers, request_id)
        return again if isinstance(again, ApiError) else (body, replace(again, raw_model=asked))

    def _by_default(self, body: bytes, peeked: Peeked) -> tuple[bytes, Peeked] | ApiError:
        model = self._live.default_model()
        if model is None:
            return bad_request("Missing required parameter: 'model'.", param="model")
        return body, replace(peeked, raw_model=model, facts=replace(peeked.facts, model=model))

    def _readers_for(self, scope: Scope) -> _Readers:
        """The readers for this sender; the name of the API key stands for the tenant."""
        reader, names = self._reader(), self._live.conversation_names
        tenant = caller_of(scope)
        if names is None and ROUTES[scope["path"]] is RESPONSES:
            names = NAMELESS
        return _Readers(
            lengths=reader if reader is None or IDENTITY not in scope else replace(reader, tenant=tenant),
            conversation=None if names is None else ConversationReader(names=names, tenant=tenant),
        )

    def _offered(self, headers: Headers) -> tuple[WorkerId, ...] | ApiError | None:
        if self._sidecar is None:
            return None
        value = next((value for name, value in headers if name == self._sidecar.header), None)
        if value is None:
            return ()
        # llm-d sends a list in order of preference and its sidecar takes the first.
        first = value.partition(b",")[0].strip().decode("latin-1")
        worker_id = self._sidecar.offer(first)
        if worker_id is not None:
            return (worker_id,)
        message = f"The prefill worker {first!r} is not allowed here."
        return ApiError(status=403, message=message, type="invalid_request_error", code="prefiller_not_allowed")

    def _forwarded(self, headers: Headers, *, has_own_key: bool) -> Headers:
        dropped = KEY_HEADERS if has_own_key else frozenset()
        if self._sidecar is not None:
            dropped |= {self._sidecar.header}
        return [pair for pair in headers if pair[0] not in dropped] if dropped else headers

    def _own_headers(self) -> tuple[tuple[bytes, bytes], ...]:
        key = self._live.upstream_authorization
        return () if key is None else ((b"authorization", key),)


def _target(scope: Scope) -> bytes:
    path: bytes = scope.get("raw_path") or scope["path"].encode()
    query: bytes = scope.get("query_string", b"")
    return path + b"?" + query if query else path
