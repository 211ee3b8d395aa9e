"""One leg on its way to its worker.

The rule of this module: what a worker gets of the client's request is the same on both legs, but for the body.
"""

from gateway.core.types import Decision, Endpoint, Path
from gateway.upstream.exchange import Exchange, Limits, ResponseListener
from gateway.upstream.heads import UpstreamRequest
from gateway.upstream.origin import Origin
from gateway.upstream.services import ClientRequest, Services
from gateway.wire.disagg import nixl
from gateway.wire.disagg.client_params import without_transfer_params

MAX_UPSTREAM_ID_CHARS = 128


def send_prefill(services: Services, request: ClientRequest, decision: Decision, leg: ResponseListener) -> Exchange:
    """Send a prefill leg to the decision's prefill worker.

    Raises:
        UnsafeHead: a header cannot be forwarded.
        ValueError: the body is nested too deeply to be edited.
        PoolClosed: the gateway is stopping.
    """
    assert decision.prefill_worker is not None
    body = nixl.prefill_body(_client_body(request), request.dialect.endpoint)
    origin = services.origins[decision.prefill_worker]
    return _send(services, request, decision, origin, body, leg, services.prefill_limits)


def send_decode(
    services: Services,
    request: ClientRequest,
    decision: Decision,
    leg: ResponseListener,
    kv_transfer_params: bytes | None,
) -> Exchange:
    """Send a decode leg to the decision's decode worker; raises as `send_prefill` does.

    Without parameters the worker prefills the prompt itself.
    """
    body = _client_body(request)
    if kv_transfer_params is not None:
        body = nixl.decode_body(body, kv_transfer_params)
    # One that splits by itself has an entry for each path.
    in_one_leg = decision.path is Path.REMOTE and decision.prefill_worker is None
    origin = (services.remote_origins if in_one_leg else services.origins)[decision.decode_worker]
    return _send(services, request, decision, origin, body, leg, services.decode_limits)


def _send(
    services: Services,
    request: ClientRequest,
    decision: Decision,
    origin: Origin,
    body: bytes,
    leg: ResponseListener,
    limits: Limits,
) -> Exchange:
    outgoing = UpstreamRequest(
        method=request.method,
        target=request.target,
        headers=request.headers,
        own_headers=((b"x-request-id", _upstream_id(request, decision)), *request.own_headers),
        body=body,
    )
    return services.pool.start(origin, outgoing, leg, limits)


def _client_body(request: ClientRequest) -> bytes:
    # An upload's form has no place for transfer parameters.
    return request.body if request.dialect.endpoint is Endpoint.AUDIO else without_transfer_params(request.body)


def _upstream_id(request: ClientRequest, decision: Decision) -> bytes:
    # The engine keys KV transfers by this id, so it must be unique even where clients repeat theirs.
    unique = f"-{decision.decision_id}"
    return (request.request_id[: MAX_UPSTREAM_ID_CHARS - len(unique)] + unique).encode("latin-1")
