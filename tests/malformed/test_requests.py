"""Requests that are malformed around their bodies: routes, methods, types, sizes, and headers."""

import json

import httpx
import pytest

from gateway.wire.dialects import ROUTES
from tests.api.asgi_client import AsgiClient
from tests.malformed.front import AUDIO, JSON_ROUTES, JSON_TYPE, MAX_BODY_BYTES, UPLOAD, Front, good

CHAT = "/v1/chat/completions"
SLO_HEADERS = (b"x-slo-ttft-ms", b"x-slo-tpot-ms", b"x-llm-d-slo-ttft-ms", b"x-llm-d-slo-tpot-ms")


@pytest.fixture
def front() -> Front:
    return Front()


def a_good(path: str) -> bytes:
    return UPLOAD if path in AUDIO else good(path)


async def ask(front: Front, method: str, path: str) -> httpx.Response:
    """An answer of the gateway's own; no worker hears of it and nothing is recorded."""
    async with httpx.AsyncClient(transport=httpx.ASGITransport(front.app), base_url="http://gw") as client:
        answer = await client.request(method, path, content=good(CHAT))
    assert front.lab.pool.legs == []
    assert front.lab.records.kept == []
    return answer


# -- routes and methods ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/v1",
        "/v1/",
        "/v1/nope",
        "/v1/chat/completions/",
        "//v1/chat/completions",
        "/v1/chat/completions/x",
        "/V1/chat/completions",
        "/v1/chat/completions%00",
        "/v1/../v1/nope",
        "/v1/embeddings/",
        "/admin",
        "/v1/" + "x" * 10_000,
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
async def test_a_route_that_does_not_exist(front: Front, method: str, path: str) -> None:
    answer = await ask(front, method, path)
    assert answer.status_code == 404
    error = answer.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert (error["type"], error["code"]) == ("invalid_request_error", "unknown_url")
    await front.still_works()


@pytest.mark.parametrize("method", ["GET", "PUT", "PATCH", "DELETE", "OPTIONS", "HEAD", "TRACE", "BREW", "post"])
async def test_a_route_of_the_engines_with_another_method(front: Front, method: str) -> None:
    for path in ROUTES:
        client = AsgiClient(front.app, path, method=method).start(b"")
        await client.task
        assert (client.status, client.header(b"allow")) == (405, b"POST")
        assert "error" in json.loads(client.body)
    assert front.lab.records.kept == []
    await front.still_works()


@pytest.mark.parametrize("path", ["/v1/models", "/livez", "/readyz", "/metrics", "/version"])
async def test_a_route_of_the_gateways_own_with_another_method(front: Front, path: str) -> None:
    for method in ("POST", "PUT", "DELETE"):
        answer = await ask(front, method, path)
        assert answer.status_code == 405
        assert answer.json()["error"]["code"] == "method_not_allowed"
        assert "GET" in answer.headers["allow"]
    await front.still_works()


# -- content types and sizes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content_type",
    [
        None,
        b"",
        b"text/plain",
        b"application/json; charset=utf-16",
        b"multipart/form-data; boundary=fence",
        b"application/x-www-form-urlencoded",
        b"a" * 5000,
        b"\xff\xfe",
    ],
)
async def test_the_content_type_of_json_is_the_workers_to_judge(front: Front, content_type: bytes | None) -> None:
    headers = [] if content_type is None else [(b"content-type", content_type)]
    for path in JSON_ROUTES:
        await front.passes(path, good(path), headers=headers)
        assert front.lab.leg.header(b"content-type") == ([] if content_type is None else [content_type])
    await front.still_works()


async def test_a_body_declared_over_the_limit(front: Front) -> None:
    for path in ROUTES:
        headers = [JSON_TYPE, (b"content-length", b"%d" % (MAX_BODY_BYTES + 1))]
        await front.refuses(path, b"", headers=headers, status=413)
        await front.refuses(path, b"", headers=[JSON_TYPE, (b"content-length", b"9" * 400)], status=413)
    await front.still_works()


async def test_a_body_that_grows_over_the_limit(front: Front) -> None:
    megabyte = b" " * 2**20
    for path in ROUTES:
        await front.refuses(path, *[megabyte] * 4, b"x", headers=[JSON_TYPE], status=413)
    await front.still_works()


# -- headers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SLO_HEADERS)
@pytest.mark.parametrize(
    "value",
    [b"", b" ", b"soon", b"0", b"-1", b"nan", b"inf", b"-inf", b"1e999", b"1e-999", b"1_000", b"1,5", b"0x10", b"\xff"],
)
async def test_an_objective_that_is_no_positive_number(front: Front, name: bytes, value: bytes) -> None:
    for path in ROUTES:
        headers = [JSON_TYPE, (name, value)]
        error = await front.refuses(path, a_good(path), headers=headers)
        assert name.decode() in error["message"]
    await front.still_works()


@pytest.mark.parametrize("value", [b"1e-300", b"1e300", b"5e-324", b"1.7e308"])
async def test_an_objective_that_is_only_unreasonable(front: Front, value: bytes) -> None:
    for name in SLO_HEADERS:
        client = await front.send(CHAT, good(CHAT), headers=[JSON_TYPE, (name, value)])
        if not client.task.done():
            front.lab.leg.answer(200, b"{}")
        await client.task
        assert client.status in {200, 400}
    front.lab.check_settled()
    await front.still_works()


@pytest.mark.parametrize("name", [b"x-slo-class", b"x-session-id"])
@pytest.mark.parametrize("value", [b"", b" ", b"nobody", b"\xff\xfe", b"x" * 60_000, b"a\tb"])
async def test_hints_that_mean_nothing(front: Front, name: bytes, value: bytes) -> None:
    await front.passes(CHAT, good(CHAT), headers=[JSON_TYPE, (name, value)])
    await front.still_works()


@pytest.mark.parametrize("value", [b"a\r\nx-evil: 1", b"a\nb", b"a\rb", b"a\0b", b"\r\n\r\nGET / HTTP/1.1"])
async def test_a_header_value_that_would_begin_another_line(front: Front, value: bytes) -> None:
    for path in ROUTES:
        content_type = [(b"content-type", b"multipart/form-data; boundary=fence")] if path in AUDIO else [JSON_TYPE]
        error = await front.refuses(path, a_good(path), headers=[*content_type, (b"x-trace", value)])
        assert "header" in error["message"]
    await front.still_works()


@pytest.mark.parametrize("name", [b"", b"a b", b"a:b", b"a\r\nb", b"transfer-encoding ", b"\xff", b"x" * 257])
async def test_a_header_name_that_is_none(front: Front, name: bytes) -> None:
    await front.refuses(CHAT, good(CHAT), headers=[JSON_TYPE, (name, b"1")])
    await front.still_works()


@pytest.mark.parametrize("value", [b"a\r\nb", b"\0", b"x" * 200, b"a b", "ü".encode()])
async def test_a_request_id_that_is_not_safe_is_replaced(front: Front, value: bytes) -> None:
    headers = [JSON_TYPE, (b"x-request-id", value)]
    client = await front.send(CHAT, b"{bad", headers=headers)
    await client.task
    assert (client.header(b"x-request-id") or b"").isalnum()
    assert client.header(b"x-request-id") != value
    await front.still_works()


async def test_64_kilobytes_of_headers_pass(front: Front) -> None:
    many = [(b"x-many-%d" % number, b"y" * 60) for number in range(1000)]
    assert sum(len(name) + len(value) for name, value in many) > 60_000
    for headers in (many, [(b"x-large", b"y" * 65_536)]):
        await front.passes(CHAT, good(CHAT), headers=[JSON_TYPE, *headers])
        assert all(front.lab.leg.header(name) == [value] for name, value in headers)
    await front.still_works()


async def test_headers_that_would_smuggle_a_second_body_stay_here(front: Front) -> None:
    own = [
        (b"transfer-encoding", b"chunked"),
        (b"content-length", b"5"),
        (b"connection", b"x-trace"),
        (b"x-trace", b"1"),
    ]
    await front.passes(CHAT, good(CHAT), headers=[JSON_TYPE, *own])
    leg = front.lab.leg
    assert leg.header(b"content-length") == [b"%d" % len(good(CHAT))]
    assert leg.header(b"transfer-encoding") == leg.header(b"x-trace") == []
    await front.still_works()
