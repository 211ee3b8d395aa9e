"""The routes that are not hot: models, health, metrics, version.

The rule of this module: every answer is made from a snapshot in memory; no route waits for a worker, and liveness
depends on none.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from gateway import __version__
from gateway.wire.errors import ApiError, bad_request, body, internal_error, method_not_allowed, response_headers


@dataclass(frozen=True, slots=True, kw_only=True)
class Views:
    """What the routes show."""

    models: Callable[[], Sequence[dict[str, Any]]]
    """Model cards in the shape of GET /v1/models."""
    ready: Callable[[], str | None]
    """None when requests can be served, else why not."""
    exposition: Callable[[str], tuple[bytes, str]]
    """The metrics for an Accept header: (body, content type)."""


def build_routes(views: Views) -> FastAPI:
    """The FastAPI application."""
    app = FastAPI(title="Tidegate", version=__version__, docs_url=None, redoc_url=None)
    _add_errors(app)
    _add_health(app, views)

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        """All models that some worker serves."""
        return {"object": "list", "data": list(views.models())}

    @app.get("/metrics", include_in_schema=False)
    async def metrics(request: Request) -> Response:
        """Prometheus or OpenMetrics text."""
        content, content_type = views.exposition(request.headers.get("accept", ""))
        return Response(content, headers={"content-type": content_type})

    @app.get("/version")
    async def version() -> dict[str, str]:
        """The gateway's version."""
        return {"version": __version__}

    return app


def _add_health(app: FastAPI, views: Views) -> None:
    async def alive() -> dict[str, str]:
        """The process answers."""
        return {"status": "ok"}

    async def ready() -> JSONResponse:
        """Requests can be served."""
        reason = views.ready()
        if reason is None:
            return JSONResponse({"status": "ready"})
        return JSONResponse({"status": "not ready", "reason": reason}, status_code=503)

    for path in ("/livez", "/live", "/liveness"):
        app.get(path, include_in_schema=path == "/livez")(alive)
    for path in ("/readyz", "/health", "/readiness"):
        app.get(path, include_in_schema=path != "/readiness")(ready)


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> Response:
        """Starlette's own errors in OpenAI's shape."""
        if error.status_code == 405:
            allow = (error.headers or {}).get("Allow", "GET").split(", ")
            return _answer(method_not_allowed(request.method, allow=allow))
        if error.status_code == 404:
            return _answer(_unknown_url(request))
        return _answer(bad_request(str(error.detail)))

    @app.exception_handler(Exception)
    async def bug(request: Request, error: Exception) -> Response:  # noqa: ARG001 (FastAPI's signature)
        """A fault of the gateway; the server logs it."""
        return _answer(internal_error())


def _unknown_url(request: Request) -> ApiError:
    message = f"Unknown request URL: {request.method} {request.url.path}."
    return ApiError(status=404, message=message, type="invalid_request_error", code="unknown_url")


def _answer(error: ApiError) -> Response:
    headers = {name.decode(): value.decode("latin-1") for name, value in response_headers(error)}
    return Response(body(error), status_code=error.status, headers=headers)
