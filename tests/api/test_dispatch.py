"""Which application answers."""

import json

import pytest

from gateway.api.asgi import AsgiApp, Message, Receive, Scope, Send
from gateway.api.dispatch import Dispatch
from tests.api.asgi_client import AsgiClient


def answering(name: bytes) -> AsgiApp:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": name})

    return app


DISPATCH = Dispatch(answering(b"hot"), answering(b"stored"), answering(b"rest"))


@pytest.mark.parametrize(
    ("method", "path", "app"),
    [
        ("POST", "/v1/chat/completions", b"hot"),
        ("POST", "/v1/completions", b"hot"),
        ("POST", "/v1/chat/completions/", b"rest"),
        ("POST", "/v1/embeddings", b"hot"),
        ("POST", "/v1/messages/count_tokens", b"hot"),
        ("POST", "/v1/embedding", b"rest"),
        ("GET", "/v1/models", b"rest"),
        ("POST", "/v1/responses", b"hot"),
        ("GET", "/v1/responses/resp_1", b"stored"),
        ("DELETE", "/v1/responses/resp_1", b"stored"),
        ("PUT", "/v1/responses/resp_1", b"stored"),
        ("POST", "/v1/responses/resp_1/cancel", b"stored"),
        ("GET", "/v1/responses/resp_1/input_items", b"stored"),
        ("GET", "/v1/responses/", b"rest"),
        ("GET", "/v1/responses/resp_1/", b"rest"),
        ("GET", "/v1/responses/resp_1/other", b"rest"),
        ("GET", "/v1/responses/resp_1/cancel/more", b"rest"),
        ("GET", "/v1/responses//cancel", b"rest"),
        ("GET", "/", b"rest"),
    ],
)
async def test_the_hot_routes_are_hot_and_nothing_else(method: str, path: str, app: bytes) -> None:
    client = AsgiClient(DISPATCH, path, method=method).start(b"")
    await client.task
    assert client.body == app


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE", "OPTIONS"])
async def test_a_hot_route_takes_no_other_method(method: str) -> None:
    client = AsgiClient(DISPATCH, "/v1/completions", method=method).start(b"")
    await client.task
    assert client.status == 405
    assert client.header(b"allow") == b"POST"
    assert json.loads(client.body)["error"]["code"] == "method_not_allowed"


async def test_what_is_not_http_is_for_the_rest() -> None:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        return {"type": "lifespan.startup"}

    await DISPATCH({"type": "lifespan"}, receive, send)
    assert sent[-1]["body"] == b"rest"
