"""The routes that are not hot: models, health, metrics, version.

The rule of this module: every answer is made from a snapshot in memory; no route waits for a worker, and liveness
depends on none.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from gateway import __version__
from gateway.wire.errors import ApiError, bad_request, body, internal_error, method_not_allowed, response_headers

LIVENESS_PATHS = ("/livez", "/live", "/liveness")
READINESS_PATHS = ("/readyz", "/health", "/readiness")


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
    add_errors(app)
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

    for path in LIVENESS_PATHS:
        app.get(path, include_in_schema=path == "/livez")(alive)
    for path in READINESS_PATHS:
        app.get(path, include_in_schema=path != "/readiness")(ready)


def add_errors(app: FastAPI) -> None:
    """Let an application answer all errors in OpenAI's shape."""

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> Response:
        """Starlette's own errors."""
        if error.status_code == 405:
            allow = (error.headers or {}).get("Allow", "GET").split(", ")
            return error_response(method_not_allowed(request.method, allow=allow))
        if error.status_code == 404:
            return error_response(_unknown_url(request))
        return error_response(bad_request(str(error.detail)))

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:  # noqa: ARG001 (FastAPI's)
        """A body or parameter that is not what it should be; the first mistake names the field."""
        mistakes = [(_field(mistake["loc"]), mistake["msg"]) for mistake in error.errors()]
        message = "; ".join(f"{field}: {words}" if field else words for field, words in mistakes)
        return error_response(bad_request(message, param=mistakes[0][0] or None, code="invalid_value"))

    @app.exception_handler(Exception)
    async def bug(request: Request, error: Exception) -> Response:  # noqa: ARG001 (FastAPI's signature)
        """A fault of the gateway; the server logs it."""
        return error_response(internal_error())


def error_response(error: ApiError) -> Response:
    """An error as FastAPI's answer."""
    headers = {name.decode(): value.decode("latin-1") for name, value in response_headers(error)}
    return Response(body(error), status_code=error.status, headers=headers)


def _field(location: Sequence[int | str]) -> str:
    """Where in the body or the query a mistake is; FastAPI puts the part of the request first."""
    return ".".join(map(str, location[1:]))


def _unknown_url(request: Request) -> ApiError:
    message = f"Unknown request URL: {request.method} {request.url.path}."
    return ApiError(status=404, message=message, type="invalid_request_error", code="unknown_url")
