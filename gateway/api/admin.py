"""The admin application: the fleet, the policy, the settings and the decisions, on a port of its own.

The rule of this module: it reads, and hands changes to those who make them; nothing is changed here. Without keys it
serves this machine only, and no web page that a browser on this machine may have open.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Annotated, Any
from urllib.parse import urlsplit

import msgspec
from fastapi import FastAPI, Query, Request, Response
from pydantic import BaseModel, Field

from gateway import __version__
from gateway.api.admin_views import PolicyView, WorkerView, masked_settings, policy_view, worker_views
from gateway.api.asgi import AsgiApp, Receive, Scope, Send
from gateway.api.auth import Keyring, RequireKey
from gateway.api.explanation import explain
from gateway.api.routes import add_errors, error_response
from gateway.core.policy import Policy
from gateway.core.types import DecisionId, WorkerId
from gateway.fleet.members import worker_member
from gateway.fleet.registry import Registry, WorkerExists
from gateway.settings import Settings, SettingsError, WorkerSettings
from gateway.settings_routing import RoutingSettings
from gateway.telemetry.decisions import DecisionLog
from gateway.telemetry.state import StateReader
from gateway.wire.errors import ApiError, bad_request
from policy_store.faults import BundleError, StoreError, UnknownVersion
from policy_store.store import FileStore

MAX_DECISIONS = 1000
SHOWN_DECISIONS = 20
"""Where a client does not say how many."""


class Reloaded(BaseModel):
    """What a reload changed."""

    changed: list[str] = Field(description="Settings, as section.field.")
    workers_put: list[str] = Field(description="Workers that joined or changed.")
    workers_removed: list[str] = Field(description="Workers that leave.")
    policy_version: str = Field(description="The version of the policy in force.")


class Activation(BaseModel):
    """Which bundle of the policy store shall decide."""

    version: str = Field(description="As `tidegate policy list` shows it.")


class RestartNeeded(SettingsError):  # noqa: N818 (it says what is the case)
    """A change of settings that only a restart can make; nothing was changed."""

    def __init__(self, fields: Sequence[str]) -> None:
        super().__init__(f"a change needs a restart: {', '.join(fields)}")
        self.fields = tuple(fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminParts:
    """What the application shows and asks."""

    registry: Registry
    state: StateReader
    decisions: DecisionLog
    policy: Callable[[], Policy]
    refusal: Callable[[], str | None]
    """Why the policy store's active bundle is not in force."""
    move_store: Callable[[Callable[[FileStore], object]], Awaitable[Policy]]
    """Raises StoreError and BundleError."""
    settings: Callable[[], Settings]
    reload: Callable[[], Awaitable[Reloaded]]
    """Raises SettingsError."""
    put_routing: Callable[[RoutingSettings], Awaitable[Policy]]
    """Raises SettingsError."""
    keyring: Callable[[], Keyring]


def build_admin(parts: AdminParts) -> AsgiApp:
    """The application behind its guards."""
    app = FastAPI(title="Tidegate admin", version=__version__)
    add_errors(app)
    _add_admin_errors(app)
    _add_workers(app, parts)
    _add_policy(app, parts)
    _add_settings(app, parts)
    _add_decisions(app, parts)
    return RequireKey(_LocalCallsOnly(app, parts.keyring), parts.keyring, scope="admin")


def require_guarded_admin(settings: Settings) -> None:
    """Check that nobody but this machine reaches an admin application without keys.

    Raises:
        SettingsError: it would be open to others.
    """
    admin = settings.admin
    if admin.port is not None and not settings.auth.keys and not _is_local(admin.host):
        raise SettingsError(
            f"admin.host: {admin.host} can be reached from elsewhere, which needs auth.keys with the scope admin; "
            "or set admin.port to null"
        )


class _AdminError(Exception):
    def __init__(self, error: ApiError) -> None:
        super().__init__(error.message)
        self.error = error


def _add_admin_errors(app: FastAPI) -> None:
    @app.exception_handler(_AdminError)
    async def refused(request: Request, error: _AdminError) -> Response:  # noqa: ARG001 (FastAPI's signature)
        return error_response(error.error)

    @app.exception_handler(RestartNeeded)
    async def restart_needed(request: Request, error: RestartNeeded) -> Response:  # noqa: ARG001
        return error_response(_error(409, str(error), "restart_needed"))

    @app.exception_handler(SettingsError)
    async def wrong_settings(request: Request, error: SettingsError) -> Response:  # noqa: ARG001
        return error_response(bad_request(str(error), code="invalid_settings"))

    @app.exception_handler(StoreError)
    async def store_refused(request: Request, error: StoreError) -> Response:  # noqa: ARG001
        if isinstance(error, UnknownVersion):
            return error_response(_error(404, str(error), "bundle_not_found"))
        return error_response(_error(409, str(error), "policy_store"))

    @app.exception_handler(BundleError)
    async def bundle_refused(request: Request, error: BundleError) -> Response:  # noqa: ARG001
        return error_response(bad_request(str(error), code="invalid_bundle"))


def _add_workers(app: FastAPI, parts: AdminParts) -> None:
    registry = parts.registry

    @app.get("/workers", tags=["workers"])
    async def workers() -> list[WorkerView]:
        """Every worker: as configured, and how it is."""
        return worker_views(registry, parts.state)

    @app.post("/workers", status_code=201, tags=["workers"])
    async def add(worker: WorkerSettings) -> WorkerView:
        """Let a worker join; it takes requests once its models are known. A restart forgets it."""
        try:
            registry.add(worker_member(worker))
        except WorkerExists as error:
            raise _AdminError(_error(409, f"{error}.", "worker_exists")) from error
        return _view(parts, WorkerId(worker.id))

    @app.post("/workers/{worker_id}/drain", tags=["workers"])
    async def drain(worker_id: str) -> WorkerView:
        """Give a worker no new requests; those in flight finish."""
        known = _known(registry, worker_id)
        registry.drain(known)
        return _view(parts, known)

    @app.delete("/workers/{worker_id}", tags=["workers"], responses={202: {"description": "It leaves when idle."}})
    async def remove(worker_id: str, response: Response, force: bool = False) -> dict[str, str]:
        """Let a worker leave: once nothing is in flight there, or with force at once."""
        gone = registry.remove(_known(registry, worker_id), force=force)
        response.status_code = 200 if gone else 202
        return {"id": worker_id, "status": "removed" if gone else "draining"}


def _add_policy(app: FastAPI, parts: AdminParts) -> None:
    @app.get("/policy", tags=["policy"])
    async def policy() -> PolicyView:
        """The policy in force, and the settings that it was made from."""
        return policy_view(parts.policy(), parts.refusal())

    @app.put("/policy", tags=["policy"])
    async def put_policy(routing: RoutingSettings) -> PolicyView:
        """Decide by another policy; the one in force stays where the new one cannot be built."""
        return policy_view(await parts.put_routing(routing), parts.refusal())

    @app.post("/policy/activate", tags=["policy"])
    async def activate(activation: Activation) -> PolicyView:
        """Let a bundle of the policy store decide; one that does not check out changes nothing."""
        return await moved(lambda store: store.activate(activation.version))

    @app.post("/policy/rollback", tags=["policy"])
    async def rollback() -> PolicyView:
        """Let the bundle decide that was active before."""
        return await moved(FileStore.rollback)

    @app.post("/policy/off", tags=["policy"])
    async def off() -> PolicyView:
        """Let the built-in rule decide until the next activation or roll-back."""
        return await moved(FileStore.switch_off)

    async def moved(move: Callable[[FileStore], object]) -> PolicyView:
        return policy_view(await parts.move_store(move), parts.refusal())


def _add_settings(app: FastAPI, parts: AdminParts) -> None:
    @app.get("/settings", tags=["settings"])
    async def settings() -> dict[str, Any]:
        """The settings in force, without secrets."""
        return masked_settings(parts.settings())

    @app.post("/settings/reload", tags=["settings"])
    async def reload() -> Reloaded:
        """Read the settings anew; where anything is wrong, nothing changes."""
        return await parts.reload()


def _add_decisions(app: FastAPI, parts: AdminParts) -> None:
    @app.get("/decisions", tags=["decisions"])
    async def decisions(limit: Annotated[int, Query(ge=1, le=MAX_DECISIONS)] = SHOWN_DECISIONS) -> Response:
        """The decisions of the newest requests that have ended, newest first."""
        lines = (line.rstrip(b"\n") for line in parts.decisions.newest(limit))
        return _json(b'{"data":[' + b",".join(lines) + b"]}")

    @app.get("/decisions/{decision_id}", tags=["decisions"])
    async def decision(decision_id: str) -> Response:
        """One decision with all that it was made from, and its explanation in words."""
        record = parts.decisions.get(DecisionId(decision_id))
        if record is None or record.decision is None:
            message = f"No decision '{decision_id}' among the newest ones that have ended."
            raise _AdminError(_error(404, message, "decision_not_found"))
        words = explain(record.decision, record.outcome)
        return _json(msgspec.json.encode({**msgspec.to_builtins(record), "explanation": words}))


def _json(content: bytes) -> Response:
    return Response(content, media_type="application/json")


def _view(parts: AdminParts, worker_id: WorkerId) -> WorkerView:
    return next(view for view in worker_views(parts.registry, parts.state) if view.id == worker_id)


def _known(registry: Registry, worker_id: str) -> WorkerId:
    if registry.get(WorkerId(worker_id)) is None:
        raise _AdminError(_error(404, f"No worker '{worker_id}'.", "worker_not_found"))
    return WorkerId(worker_id)


def _error(status: int, message: str, code: str) -> ApiError:
    return ApiError(status=status, message=message, type="invalid_request_error", code=code)


class _LocalCallsOnly:
    """Without keys, refuses what a web page in a browser on this machine could send.

    Such a page can reach loopback: by a name of its own that resolves there (the Host header tells), or across
    origins (the Origin header tells).
    """

    def __init__(self, app: AsgiApp, keyring: Callable[[], Keyring]) -> None:
        self._app = app
        self._keyring = keyring

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not self._keyring() and not _comes_from_here(dict(scope["headers"])):
            message = "Without auth.keys the admin application answers only calls to a loopback name of this machine."
            await error_response(_error(403, message, "not_local"))(scope, receive, send)
        else:
            await self._app(scope, receive, send)


def _comes_from_here(headers: Mapping[bytes, bytes]) -> bool:
    host = headers.get(b"host", b"").decode("latin-1")
    origin = headers.get(b"origin")
    try:
        name = urlsplit(f"//{host}").hostname
    except ValueError:
        return False
    return _is_local(name or "") and origin in (None, f"http://{host}".encode("latin-1"))


def _is_local(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
