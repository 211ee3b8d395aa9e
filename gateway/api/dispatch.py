"""Which application answers a request.

The rule of this module: the hot routes go to the raw handler, all else to FastAPI.
"""

from collections.abc import Awaitable, Callable

from gateway.api.asgi import Receive, Scope, Send, send_error
from gateway.api.hot import HOT_ROUTES
from gateway.wire.errors import method_not_allowed

AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]


class Dispatch:
    """The outermost ASGI application."""

    def __init__(self, hot: AsgiApp, rest: AsgiApp) -> None:
        self._hot = hot
        self._rest = rest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        if scope["type"] != "http" or scope["path"] not in HOT_ROUTES:
            await self._rest(scope, receive, send)
        elif scope["method"] == "POST":
            await self._hot(scope, receive, send)
        else:
            await send_error(send, method_not_allowed(scope["method"], allow=("POST",)), [])
