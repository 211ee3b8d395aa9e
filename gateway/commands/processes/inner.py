"""What one of several processes answers to its parent, and the one route that it answers by its parent.

The rule of this module: what clients of the admin application may do is for that application to say; only the parent
itself has the header that opens the rest, and it lets nobody else's through.
"""

import asyncio
from pathlib import Path
from typing import Final

import httpx
import msgspec
import structlog

from gateway.api.asgi import AsgiApp, Headers, Receive, Scope, Send, send_json
from gateway.app import Gateway
from gateway.commands.processes.changes import Added, Change, Drained, Removed, Routed
from gateway.commands.processes.hub import JOIN, METRICS, Beginning, Joins
from gateway.commands.processes.identity import INNER
from gateway.commands.processes.siblings import BASE_URL
from gateway.core.types import WorkerId
from gateway.fleet.members import worker_member
from gateway.fleet.registry import WorkerExists
from gateway.settings import SettingsError, WorkerSettings
from gateway.settings_routing import RoutingSettings
from gateway.telemetry.merging import packed
from gateway.wire import errors as api_errors

PARENT_S: Final = 30.0
"""For the parent's answer to one that begins: a change may be under way."""
SCRAPE_S: Final = 5.0
"""For the metrics of all processes; some may be waited for."""
_JSON: Final[Headers] = [(b"content-type", b"application/json")]


class Inner:
    """The application on a process's own socket.

    Args:
        gateway: of this process.
    """

    def __init__(self, gateway: Gateway) -> None:
        self.ready = asyncio.Event()
        """Set once it is as its siblings: changes wait for that, so that none comes before an earlier one."""
        self._gateway = gateway

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        is_inner = any(name == INNER.encode() for name, _ in scope["headers"])
        if is_inner and scope["path"] == METRICS:
            await send_json(send, 200, [], packed(self._gateway.exposition.families()))
            return
        await self.ready.wait()
        if is_inner:
            status, body = await self._obey(scope["path"])
            await send_json(send, status, _JSON, body)
        else:
            await self._gateway.admin(scope, receive, send)

    async def _obey(self, path: str) -> tuple[int, bytes]:
        reloader = self._gateway.reloader
        if path == "/follow":
            await reloader.follow_store()
            return 200, b"{}"
        try:
            reloaded = await reloader.reload()
        except SettingsError:
            return 400, b"{}"  # the reloader has logged why
        return 200, reloaded.model_dump_json().encode()


class MetricsOfAll:
    """Answers GET /metrics with what the parent gathers, and passes all else on.

    Args:
        app: the gateway's.
        parent: its socket.
    """

    def __init__(self, app: AsgiApp, parent: httpx.AsyncClient) -> None:
        self._app = app
        self._parent = parent

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http" or scope["path"] != METRICS or scope["method"] != "GET":
            await self._app(scope, receive, send)
            return
        accept = [(name, value) for name, value in scope["headers"] if name == b"accept"]
        try:
            answer = await self._parent.get(METRICS, headers=accept, timeout=SCRAPE_S)
            answer.raise_for_status()
        except httpx.HTTPError:
            # The counts of this process alone would be taken for those of all, begun anew.
            error = api_errors.unavailable("The metrics of the gateway's processes cannot be gathered now.")
            await send_json(send, error.status, api_errors.response_headers(error), api_errors.body(error))
            return
        await send_json(send, 200, [(b"content-type", answer.headers["content-type"].encode())], answer.content)


async def join(parent: httpx.AsyncClient, number: int, socket: Path) -> Beginning:
    """Say that a process is there.

    Raises:
        OSError: the parent does not answer.
    """
    joins = msgspec.json.encode(Joins(number=number, socket=str(socket)))
    try:
        answer = await parent.post(JOIN, content=joins, timeout=PARENT_S)
        answer.raise_for_status()
    except httpx.HTTPError as error:
        raise OSError(f"the parent process does not answer: {error!r}") from error
    return msgspec.json.decode(answer.content, type=Beginning)


def parent_client(socket: Path) -> httpx.AsyncClient:
    """To call the parent."""
    return httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(uds=str(socket)), base_url=BASE_URL, trust_env=False)


async def begin_as(gateway: Gateway, beginning: Beginning) -> None:
    """Make a process what its siblings are; what cannot be done is logged."""
    log = structlog.get_logger()
    for change in beginning.changes:
        try:
            await _make(gateway, change)
        except (SettingsError, ValueError, WorkerExists) as error:
            log.warning("process.change_refused", change=type(change).__name__, error=str(error))
    if beginning.must_reload:
        try:
            await gateway.reloader.reload()
        except SettingsError:
            return  # the reloader has logged why


async def _make(gateway: Gateway, change: Change) -> None:
    registry = gateway.registry
    match change:
        case Added(worker):
            registry.add(worker_member(WorkerSettings(**worker)))
        case Drained(worker_id) if registry.get(WorkerId(worker_id)) is not None:
            registry.drain(WorkerId(worker_id))
        case Removed(worker_id) if registry.get(WorkerId(worker_id)) is not None:
            registry.remove(WorkerId(worker_id), force=True)
        case Routed(routing):
            await gateway.reloader.put_routing(RoutingSettings(**routing))
        case _:
            pass  # a worker that is not known here any more
