"""Which application answers a request.

The rule of this module: the hot routes and those of stored responses go to raw handlers, all else to FastAPI.
"""

from gateway.api.asgi import AsgiApp, Receive, Scope, Send, send_json
from gateway.api.responses import stored_route
from gateway.api.routes import LIVENESS_PATHS, READINESS_PATHS
from gateway.wire.dialects import ROUTES
from gateway.wire.errors import method_not_allowed, response_headers

OPEN_PATHS = frozenset({*LIVENESS_PATHS, *READINESS_PATHS, "/metrics", "/version"})
"""These need no key: probes and scrapers have none."""


class Dispatch:
    """The outermost ASGI application.

    Args:
        hot: the routes of the engines.
        stored: responses by their id.
        rest: all else.
    """

    def __init__(self, hot: AsgiApp, stored: AsgiApp, rest: AsgiApp) -> None:
        self._hot = hot
        self._stored = stored
        self._rest = rest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        if scope["type"] != "http" or scope["path"] not in ROUTES:
            is_stored = scope["type"] == "http" and stored_route(scope["path"]) is not None
            await (self._stored if is_stored else self._rest)(scope, receive, send)
        elif scope["method"] == "POST":
            await self._hot(scope, receive, send)
        else:
            error = method_not_allowed(scope["method"], allow=("POST",))
            body = ROUTES[scope["path"]].error_body(error)
            await send_json(send, error.status, response_headers(error), body)
