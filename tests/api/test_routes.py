"""The routes for operators and curious clients."""

from typing import Any

import httpx
import pytest

from gateway import __version__
from gateway.api.routes import Views, build_routes

CARDS = [{"id": "llama", "object": "model", "created": 1, "owned_by": "vllm", "max_model_len": 8192}]
LIVENESS = ["/livez", "/live", "/liveness"]
READINESS = ["/readyz", "/health", "/readiness"]


def client(**changes: Any) -> httpx.AsyncClient:
    """A client of the routes; `changes` go to what they show."""
    shown: dict[str, Any] = {
        "models": lambda: CARDS,
        "ready": lambda: None,
        "exposition": lambda accept: (f"accept={accept}".encode(), "text/plain; version=0.0.4"),
        **changes,
    }
    transport = httpx.ASGITransport(build_routes(Views(**shown)), raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://gateway")


async def test_models_are_listed_as_the_workers_describe_them() -> None:
    answer = await client().get("/v1/models")
    assert answer.json() == {"object": "list", "data": CARDS}


async def test_no_models_are_an_empty_list() -> None:
    answer = await client(models=list).get("/v1/models")
    assert answer.json() == {"object": "list", "data": []}


@pytest.mark.parametrize("path", LIVENESS)
async def test_liveness_depends_on_no_worker(path: str) -> None:
    answer = await client(ready=lambda: "no worker is up").get(path)
    assert (answer.status_code, answer.json()) == (200, {"status": "ok"})


@pytest.mark.parametrize("path", READINESS)
async def test_readiness_says_why_not(path: str) -> None:
    assert (await client().get(path)).json() == {"status": "ready"}
    answer = await client(ready=lambda: "no worker is up").get(path)
    assert answer.status_code == 503
    assert answer.json() == {"status": "not ready", "reason": "no worker is up"}


async def test_metrics_are_rendered_for_the_accept_header() -> None:
    answer = await client().get("/metrics", headers={"accept": "application/openmetrics-text"})
    assert answer.text == "accept=application/openmetrics-text"
    assert answer.headers["content-type"] == "text/plain; version=0.0.4"


async def test_the_version_is_the_packages() -> None:
    assert (await client().get("/version")).json() == {"version": __version__}


async def test_an_unknown_url_is_404_in_openais_shape() -> None:
    answer = await client().post("/v1/embeddings")
    assert answer.status_code == 404
    error = answer.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["code"] == "unknown_url"
    assert "POST /v1/embeddings" in error["message"]


@pytest.mark.parametrize("path", ["/v1/models", "/metrics", "/version", *LIVENESS, *READINESS])
async def test_a_wrong_method_is_405_in_openais_shape(path: str) -> None:
    answer = await client().post(path)
    assert answer.status_code == 405
    assert answer.headers["allow"] == "GET"
    assert answer.json()["error"]["code"] == "method_not_allowed"


async def test_a_fault_of_the_gateway_is_500_in_openais_shape_and_tells_nothing() -> None:
    def broken() -> list[dict[str, Any]]:
        raise RuntimeError("a secret")

    answer = await client(models=broken).get("/v1/models")
    assert answer.status_code == 500
    assert answer.json()["error"]["code"] == "internal_error"
    assert "secret" not in answer.text


async def test_the_schema_lists_one_path_per_purpose() -> None:
    schema = (await client().get("/openapi.json")).json()
    assert set(schema["paths"]) == {"/v1/models", "/version", "/livez", "/readyz", "/health"}
