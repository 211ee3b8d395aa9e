"""The whole ASGI application in front of a lab: what it answers, what it wrote down, and what went to a worker."""

import json
from collections.abc import Sequence
from typing import Any

from gateway.api.auth import Keyring, RequireKey
from gateway.api.dispatch import OPEN_PATHS, Dispatch
from gateway.api.hot import HotRoutes
from gateway.api.intake import Intake
from gateway.api.live import Live
from gateway.api.responses import StoredResponses, Whereabouts
from gateway.api.routes import Views, build_routes
from gateway.core.types import Outcome, OutcomeKind, Refusal
from gateway.wire.dialects import ROUTES
from tests.api.asgi_client import AsgiClient, settle
from tests.upstream.journey_lab import MODEL, Lab, whole_answer

MAX_BODY_BYTES = 4 * 2**20
BOUNDARY = b"fence"
JSON_TYPE = (b"content-type", b"application/json")
FORM_TYPE = (b"content-type", b"multipart/form-data; boundary=" + BOUNDARY)
ANTHROPIC = ("/v1/messages", "/v1/messages/count_tokens")
AUDIO = ("/v1/audio/transcriptions", "/v1/audio/translations")
JSON_ROUTES = tuple(path for path in ROUTES if path not in AUDIO)
MESSAGES = [{"role": "user", "content": "hello"}]

_REST = build_routes(Views(models=list, ready=lambda: None, exposition=lambda _: (b"", "text/plain")))

_INPUT: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": MESSAGES},
    "/v1/completions": {"prompt": "hello"},
    "/v1/responses": {"input": "hello"},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 8},
    "/v1/messages/count_tokens": {"messages": MESSAGES},
    "/v1/embeddings": {"input": "hello"},
    "/pooling": {"input": "hello"},
    "/v1/pooling": {"input": "hello"},
    "/score": {"text_1": "hello", "text_2": ["a", "b"]},
    "/v1/score": {"text_1": "hello", "text_2": ["a", "b"]},
    "/rerank": {"query": "hello", "documents": ["a", "b"]},
    "/v1/rerank": {"query": "hello", "documents": ["a", "b"]},
    "/v2/rerank": {"query": "hello", "documents": ["a", "b"]},
    "/tokenize": {"prompt": "hello"},
    "/detokenize": {"tokens": [1, 2, 3]},
    "/v1/chat/completions/render": {"messages": MESSAGES},
    "/v1/completions/render": {"prompt": "hello"},
}


def fields(path: str, **changes: Any) -> dict[str, Any]:
    """A good body of a JSON route, with changes."""
    return {"model": MODEL, **_INPUT[path], **changes}


def good(path: str, **changes: Any) -> bytes:
    """The same as bytes."""
    return json.dumps(fields(path, **changes)).encode()


def raw(path: str, key: str, value: bytes) -> bytes:
    """A good body in which one key has this JSON text, or what is none."""
    members = {name: json.dumps(given).encode() for name, given in fields(path).items()} | {key: value}
    return b"{" + b",".join(b'"%b":%b' % (name.encode(), text) for name, text in members.items()) + b"}"


def form(*parts: tuple[str, bytes], end: bytes = b"--\r\n") -> bytes:
    """A multipart body; a name with a semicolon brings further parameters."""
    heads = [b'content-disposition: form-data; name="%b"' % name.encode() for name, _ in parts]
    pieces = [
        b"--%b\r\n%b\r\n\r\n%b\r\n" % (BOUNDARY, head, content) for head, (_, content) in zip(heads, parts, strict=True)
    ]
    return b"".join(pieces) + b"--" + BOUNDARY + end


UPLOAD = form(("model", MODEL.encode()), ('file"; filename="a.wav', b"RIFF\x00\xff"))


class Front:
    """One gateway and its one client."""

    def __init__(self) -> None:
        self.lab = Lab.local()
        self.live = Live(default_model=lambda: MODEL, aliases={"alias": MODEL})
        intake = Intake(self.live)
        hot = HotRoutes(self.lab.services, intake, max_body_bytes=MAX_BODY_BYTES)
        nowhere = Whereabouts(home=lambda *_: None, decoders=list, has_tenants=lambda: False)
        stored = StoredResponses(self.lab.services, intake, nowhere, max_body_bytes=MAX_BODY_BYTES)
        routes = Dispatch(hot, stored, _REST)
        self.app = RequireKey(routes, Keyring, scope="data", open_paths=OPEN_PATHS)

    async def send(self, path: str, *pieces: bytes, headers: Sequence[tuple[bytes, bytes]] | None = None) -> AsgiClient:
        """A request to a route of the engines; it is over, or it has reached a worker."""
        self.lab.requests += 1
        legs = len(self.lab.pool.legs)
        given = [FORM_TYPE if path in AUDIO else JSON_TYPE] if headers is None else headers
        client = AsgiClient(self.app, path, headers=given).start(*(pieces or (b"",)))
        await settle(lambda: client.task.done() or len(self.lab.pool.legs) > legs)
        return client

    async def refuses(
        self,
        path: str,
        *pieces: bytes,
        headers: Sequence[tuple[bytes, bytes]] | None = None,
        status: int = 400,
    ) -> dict[str, Any]:
        """The error of a request that gets this status: it is counted once, and no worker hears of it."""
        legs = len(self.lab.pool.legs)
        client = await self.send(path, *pieces, headers=headers)
        assert client.task.done(), f"it went to a worker: {pieces[0][:200]!r}"
        await client.task
        assert len(self.lab.pool.legs) == legs
        assert client.status == status, client.body
        assert client.whole
        error = self.error(client, path)
        outcome, routed = self._last()
        assert (outcome.status, outcome.kind) == (status, kind_of(routed))
        self.lab.check_settled()
        return error

    async def passes(
        self, path: str, body: bytes, *, headers: Sequence[tuple[bytes, bytes]] | None = None, sent: bytes | None = None
    ) -> AsgiClient:
        """A request reaches a worker byte for byte, or as `sent`, and gets its answer."""
        client = await self.send(path, body, headers=headers)
        assert not client.task.done(), client.body
        assert self.lab.leg.body == (body if sent is None else sent)
        self.lab.leg.answer(200, whole_answer())
        await client.task
        assert client.status == 200
        self.lab.check_settled()
        return client

    async def judges(self, path: str, body: bytes) -> bool:
        """Whatever the body: it is refused in good order (False), or it goes to a worker as it is (True)."""
        client = await self.send(path, body)
        if not client.task.done():
            assert self.lab.leg.body == body
            self.lab.leg.answer(200, whole_answer())
            await client.task
            assert client.status == 200
            return True
        await client.task
        assert client.status in {400, 404}, client.body
        self.error(client, path)
        return False

    async def still_works(self) -> None:
        """The next good request, on any route."""
        await self.passes("/v1/chat/completions", good("/v1/chat/completions"))

    def error(self, client: AsgiClient, path: str) -> dict[str, Any]:
        """The error in the shape of the route's dialect."""
        assert client.header(b"content-type") == b"application/json"
        assert client.header(b"content-length") == b"%d" % len(client.body)
        assert client.header(b"x-request-id")
        body: dict[str, Any] = json.loads(client.body)
        error: dict[str, Any] = body["error"]
        if path in ANTHROPIC:
            assert body.keys() == {"type", "error"}
            assert body["type"] == "error"
            assert error.keys() == {"type", "message"}
        else:
            assert body.keys() == {"error"}
            assert error.keys() == {"message", "type", "param", "code"}
        assert error["message"]
        return error

    def _last(self) -> tuple[Outcome, object]:
        routed, outcome, _, _ = self.lab.records.kept[-1]
        return outcome, routed


def kind_of(routed: object) -> OutcomeKind:
    """The core's refusal of a model that nobody serves is a refusal; all else here is the client's mistake."""
    return OutcomeKind.REFUSED if isinstance(routed, Refusal) else OutcomeKind.CLIENT_ERROR
