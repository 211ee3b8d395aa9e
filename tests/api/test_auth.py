"""Keys: who is let in, who is not, and in whose words."""

import json
from typing import Any

import pytest

from gateway.api.asgi import AsgiApp, Receive, Scope, Send
from gateway.api.auth import IDENTITY, Keyring, RequireKey, key_hash, new_key
from gateway.api.dispatch import OPEN_PATHS
from gateway.settings import KeySettings
from tests.api.asgi_client import AsgiClient

DATA_KEY, ADMIN_KEY, BOTH_KEY = "tg-data", "tg-admin", "tg-both"


def key(secret: str, *scopes: Any) -> KeySettings:
    return KeySettings(name=secret, sha256=key_hash(secret), scopes=scopes)


RING = Keyring([key(DATA_KEY, "data"), key(ADMIN_KEY, "admin"), key(BOTH_KEY, "data", "admin")])


class Behind:
    """The application behind the guard: it keeps the scopes that it got."""

    def __init__(self) -> None:
        self.scopes: list[Scope] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scopes.append(scope)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"behind"})


async def call(app: AsgiApp, path: str = "/v1/chat/completions", **headers: str) -> AsgiClient:
    pairs = [(name.replace("_", "-").encode(), value.encode("latin-1")) for name, value in headers.items()]
    client = AsgiClient(app, path, headers=pairs).start(b"")
    await client.task
    return client


def guard(app: AsgiApp, ring: Keyring = RING, scope: Any = "data") -> RequireKey:
    return RequireKey(app, lambda: ring, scope=scope, open_paths=OPEN_PATHS)


@pytest.mark.parametrize(
    ("authorization", "x_api_key", "owner"),
    [
        (b"Bearer tg-data", None, DATA_KEY),
        (b"bearer  tg-both ", None, BOTH_KEY),
        (None, b"tg-admin", ADMIN_KEY),
        (b"Basic dGctZGF0YQ==", b"tg-data", DATA_KEY),
        (b"Bearer tg-data", b"wrong", DATA_KEY),
        (b"Bearer wrong", b"tg-data", None),
        (b"Bearer ", b"", None),
        (b"tg-data", None, None),
        (b"Bearer tg-dat", None, None),
        (b"Bearer \xff", None, None),
        (None, None, None),
    ],
)
def test_a_key_is_known_by_its_hash(authorization: bytes | None, x_api_key: bytes | None, owner: str | None) -> None:
    identity = RING.authenticate(authorization, x_api_key)
    assert (identity.name if identity else None) == owner


def test_the_hash_itself_opens_nothing() -> None:
    assert RING.authenticate(b"Bearer " + key_hash(DATA_KEY).encode(), None) is None


def test_every_key_is_compared_whichever_matches(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[bytes] = []

    def compare(known: bytes, given: bytes) -> bool:
        compared.append(known)
        return known == given

    monkeypatch.setattr("gateway.api.auth.hmac.compare_digest", compare)
    for secret in (DATA_KEY, BOTH_KEY, "wrong"):
        RING.authenticate(f"Bearer {secret}".encode(), None)
    assert len(compared) == 9


def test_fresh_keys_differ_and_are_long() -> None:
    keys = {new_key() for _ in range(100)}
    assert len(keys) == 100
    assert all(len(each) >= 43 for each in keys)


async def test_without_keys_everything_is_open_and_nobody_is_named() -> None:
    behind = Behind()
    assert (await call(guard(behind, Keyring()))).status == 200
    assert IDENTITY not in behind.scopes[0]


async def test_the_caller_stands_in_the_scope() -> None:
    behind = Behind()
    assert (await call(guard(behind), authorization="Bearer tg-data")).status == 200
    assert behind.scopes[0][IDENTITY].name == DATA_KEY


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/models", "/tokenize", "/nowhere", "/metrics/", "/"])
async def test_a_call_without_a_key_is_401_in_openais_shape(path: str) -> None:
    behind = Behind()
    client = await call(guard(behind), path)
    assert (client.status, client.header(b"www-authenticate")) == (401, b"Bearer")
    error = json.loads(client.body)["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["code"] == "invalid_api_key"
    assert behind.scopes == []


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
@pytest.mark.parametrize(
    ("secret", "status", "kind"), [("wrong", 401, "authentication_error"), ("tg-admin", 403, "permission_error")]
)
async def test_anthropics_routes_refuse_in_anthropics_shape(path: str, secret: str, status: int, kind: str) -> None:
    client = await call(guard(Behind()), path, x_api_key=secret)
    assert client.status == status
    answer = json.loads(client.body)
    assert answer["type"] == "error"
    assert answer["error"].keys() == {"type", "message"}
    assert answer["error"]["type"] == kind
    assert client.header(b"content-type") == b"application/json"


async def test_only_the_route_itself_is_anthropics() -> None:
    assert "code" in json.loads((await call(guard(Behind()), "/v1/messagesque")).body)["error"]


@pytest.mark.parametrize("path", sorted(OPEN_PATHS))
async def test_probes_and_scrapes_need_no_key(path: str) -> None:
    assert (await call(guard(Behind()), path)).status == 200


@pytest.mark.parametrize(
    ("scope", "secret", "status"),
    [
        ("data", DATA_KEY, 200),
        ("data", ADMIN_KEY, 403),
        ("data", BOTH_KEY, 200),
        ("admin", DATA_KEY, 403),
        ("admin", ADMIN_KEY, 200),
        ("admin", BOTH_KEY, 200),
    ],
)
async def test_a_key_opens_its_scopes_alone(scope: str, secret: str, status: int) -> None:
    client = await call(guard(Behind(), scope=scope), authorization=f"Bearer {secret}")
    assert client.status == status
    if status == 403:
        assert json.loads(client.body)["error"]["code"] == "insufficient_permissions"


async def test_the_keys_of_the_moment_count() -> None:
    rings = [Keyring([key("old", "data")]), Keyring([key("new", "data")])]
    app = RequireKey(Behind(), lambda: rings[0], scope="data")
    assert (await call(app, authorization="Bearer old")).status == 200
    del rings[0]
    assert (await call(app, authorization="Bearer old")).status == 401
    assert (await call(app, authorization="Bearer new")).status == 200
