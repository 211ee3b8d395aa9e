"""What the client is told: heads with the decision in them, and the gateway's own errors.

The rule of this module: a worker's answer keeps its own headers, less those of one hop; the decision is added where
there was one, so that every answer can be explained.
"""

from functools import lru_cache

from gateway.core.types import Decision, Path, RequestId, WorkerId
from gateway.upstream.heads import filter_response_headers
from gateway.upstream.services import ClientRequest, ClientSink, Headers
from gateway.wire import errors as api_errors
from gateway.wire.errors import ApiError

BODILESS = frozenset({204, 304})
"""Statuses of answers without a body; a worker's Content-Length would tell of one."""


def relayed_headers(
    headers: Headers, request: ClientRequest, decision: Decision | None, *, reframed: bool = False
) -> Headers:
    """The head of a worker's answer as the client sees it; `reframed` where its length may change on the way."""
    kept = [pair for pair in filter_response_headers(headers, reframed=reframed) if pair[0] != b"x-request-id"]
    return kept + _own_headers(request.request_id, decision)


def answer_error(sink: ClientSink, error: ApiError, request: ClientRequest, decision: Decision | None) -> None:
    """Answer with an error of the gateway's own, whole, in the client's dialect."""
    body = request.dialect.error_body(error)
    headers = api_errors.response_headers(error) + _own_headers(request.request_id, decision)
    headers.append((b"content-length", b"%d" % len(body)))
    sink.start(error.status, headers)
    sink.write(body)
    sink.finish()


def _own_headers(request_id: RequestId, decision: Decision | None) -> Headers:
    own = (b"x-request-id", request_id.encode("latin-1"))
    if decision is None:
        return [own]
    route = _route_headers(decision.path, decision.decode_worker, decision.policy)
    return [own, (b"x-tidegate-decision-id", decision.decision_id.encode("latin-1")), *route]


@lru_cache(maxsize=4096)
def _route_headers(path: Path, worker_id: WorkerId, policy: str) -> tuple[tuple[bytes, bytes], ...]:
    """Of these there are as many as there are workers and paths."""
    return (
        (b"x-tidegate-path", path.encode()),
        (b"x-tidegate-worker", worker_id.encode("latin-1")),
        (b"x-tidegate-policy", policy.encode("latin-1")),
    )
