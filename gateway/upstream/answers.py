"""What the client is told: heads with the decision in them, and the gateway's own errors.

The rule of this module: a worker's answer keeps its own headers, less those of one hop; the decision is added where
there was one, so that every answer can be explained.
"""

from gateway.core.types import Decision, RequestId
from gateway.upstream.heads import filter_response_headers
from gateway.upstream.services import ClientRequest, ClientSink, Headers
from gateway.wire import errors as api_errors
from gateway.wire.errors import ApiError


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
    headers = [(b"x-request-id", request_id.encode("latin-1"))]
    if decision is not None:
        headers += [
            (b"x-tidegate-decision-id", decision.decision_id.encode("latin-1")),
            (b"x-tidegate-path", decision.path.encode()),
            (b"x-tidegate-worker", decision.decode_worker.encode("latin-1")),
            (b"x-tidegate-policy", decision.policy.encode("latin-1")),
        ]
    return headers
