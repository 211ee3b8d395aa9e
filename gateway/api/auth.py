"""Who may call: API keys, known by their hashes alone.

The rule of this module: every key is compared, in constant time, whether or not an earlier one has matched. A key that
is the gateway's own business never goes on to a worker; who called stands in the scope instead.
"""

import hmac
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from hashlib import sha256
from typing import Literal

from gateway.api.asgi import AsgiApp, Headers, Receive, Scope, Send, send_json
from gateway.api.refusal import WholeAnswer, refusal
from gateway.api.request_id import request_id_of
from gateway.core.types import RequestId
from gateway.settings import KeySettings
from gateway.wire import errors as api_errors
from gateway.wire.errors import ApiError

KeyScope = Literal["data", "admin"]
IDENTITY = "tidegate.identity"
"""Where the ASGI scope holds the caller's `Identity`; absent where no keys are configured."""
KEY_PREFIX = "tg-"
KEY_BYTES = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Who called."""

    name: str
    scopes: frozenset[KeyScope]


class Keyring:
    """All keys."""

    def __init__(self, keys: Iterable[KeySettings] = ()) -> None:
        self._keys = tuple(
            (bytes.fromhex(key.sha256), Identity(name=key.name, scopes=frozenset(key.scopes))) for key in keys
        )

    def __bool__(self) -> bool:
        return bool(self._keys)

    @property
    def tenants(self) -> int:
        """How many names there are on the data routes; 0 where everybody may call."""
        return len({identity.name for _, identity in self._keys if "data" in identity.scopes})

    def authenticate(self, authorization: bytes | None, x_api_key: bytes | None) -> Identity | None:
        """The owner of the key in `Authorization: Bearer`, or else in `x-api-key`; None without a known one."""
        key = _bearer(authorization) or x_api_key
        if not key:
            return None
        digest, found = sha256(key).digest(), None
        for known, identity in self._keys:
            if hmac.compare_digest(known, digest):
                found = identity
        return found


def caller_of(scope: Scope) -> str:
    """The name of whoever called, which stands for the tenant; empty where no keys are configured."""
    identity: Identity | None = scope.get(IDENTITY)
    return "" if identity is None else identity.name


def new_key() -> str:
    """A fresh key: 256 random bits."""
    return KEY_PREFIX + secrets.token_urlsafe(KEY_BYTES)


def key_hash(key: str) -> str:
    """What the settings hold of a key."""
    return sha256(key.encode()).hexdigest()


class RequireKey:
    """Lets only those requests through that bring a key of `scope`; without any keys, all.

    Args:
        app: the application behind it.
        keyring: the keys of this moment.
        scope: what the key must open.
        open_paths: need no key.
        refused: told of every request that is not let through, with its id and status.
    """

    def __init__(
        self,
        app: AsgiApp,
        keyring: Callable[[], Keyring],
        *,
        scope: KeyScope,
        open_paths: frozenset[str] = frozenset(),
        refused: Callable[[RequestId, int], None] | None = None,
    ) -> None:
        self._app = app
        self._keyring = keyring
        self._scope: KeyScope = scope
        self._open_paths = open_paths
        self._refused = refused

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer 401 or 403."""
        if scope["type"] != "http" or scope["path"] in self._open_paths:
            await self._app(scope, receive, send)
            return
        identity = self.examine(scope["headers"])
        if isinstance(identity, ApiError):
            answer = self.refuse(identity, scope["path"], scope["headers"])
            await send_json(send, answer.status, answer.headers, answer.body)
            return
        if identity is not None:
            scope[IDENTITY] = identity
        await self._app(scope, receive, send)

    def examine(self, headers: Headers) -> Identity | ApiError | None:
        """Who calls a path that is not open, or why nobody may who sends this; None where everybody may."""
        keyring = self._keyring()
        if not keyring:
            return None
        identity = keyring.authenticate(*_credentials(headers))
        if identity is None:
            return api_errors.unauthorized()
        return identity if self._scope in identity.scopes else _forbidden(self._scope)

    def refuse(self, error: ApiError, path: str, headers: Headers) -> WholeAnswer:
        """The answer to a request that is not let through, which is told of."""
        request_id = request_id_of(headers)
        if self._refused is not None:
            self._refused(request_id, error.status)
        return refusal(error, path, request_id)


def _credentials(headers: Headers) -> tuple[bytes | None, bytes | None]:
    authorization = x_api_key = None
    for name, value in headers:
        if name == b"authorization":
            authorization = value
        elif name == b"x-api-key":
            x_api_key = value
    return authorization, x_api_key


def _bearer(authorization: bytes | None) -> bytes | None:
    scheme, _, key = (authorization or b"").partition(b" ")
    return key.strip() if scheme.lower() == b"bearer" else None


def _forbidden(scope: KeyScope) -> ApiError:
    message = f"This API key has no scope '{scope}'."
    return ApiError(status=403, message=message, type="invalid_request_error", code="insufficient_permissions")
