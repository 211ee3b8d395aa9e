"""Keeping secrets and prompts out of the logs.

The rule of this module: values under a sensitive name go, whatever they are, and credentials inside other text go
too. It is the last line of defence: the events themselves are built without such fields.
"""

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final

from structlog.typing import EventDict, WrappedLogger

REDACTED: Final = "[redacted]"

SENSITIVE_NAMES: Final = frozenset(
    {
        # Credentials.
        "authorization", "proxy_authorization", "api_key", "x_api_key", "access_token", "token", "password",
        "secret", "cookie", "set_cookie",
        # What the client wrote and what it got.
        "body", "content", "input", "messages", "prompt", "prompts", "suffix", "text", "tools",
    }
)  # fmt: skip
"""Lower-case names with underscores; header names match with their dashes."""

_CREDENTIAL: Final = re.compile(
    r"""(\b(?:bearer|basic)[ ]+            # an Authorization value
        |[?&](?:api[-_]?key|key|token|access_token)=  # a query parameter
        |://(?=[^/\s@]*@)                 # user and password of a URL
        )[^\s&@"']+
        |\bsk-[\w-]{8,}                   # an OpenAI-style key
    """,
    re.IGNORECASE | re.VERBOSE,
)


def redact(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """A structlog processor: the event with sensitive values replaced, at any depth."""
    for name, value in event.items():
        event[name] = _clean(name, value)
    return event


def _clean(name: object, value: object) -> object:
    if isinstance(name, (str, bytes)) and _is_sensitive(name):
        return REDACTED
    if isinstance(value, str):
        return _clean_text(value)
    if isinstance(value, bytes):
        return _clean(name, value.decode("latin-1"))
    if isinstance(value, Mapping):
        return {key: _clean(key, item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return _clean_items(value)
    return value


def may_hold_credential(text: str) -> bool:
    """A cheap look for what every credential that `redact` finds in text has; most values are bare words."""
    return " " in text or "=" in text or "@" in text or "sk-" in text


def _clean_text(text: str) -> str:
    if may_hold_credential(text):
        return _CREDENTIAL.sub(rf"\1{REDACTED}", text)
    return text


def _clean_items(items: Sequence[object]) -> list[object]:
    # Raw headers are pairs: the first of a pair names the second.
    if len(items) == 2 and isinstance(items[0], str | bytes):
        return [_clean(None, items[0]), _clean(items[0], items[1])]
    return [_clean(None, item) for item in items]


@lru_cache(maxsize=1024)
def _is_sensitive(name: str | bytes) -> bool:
    text = name if isinstance(name, str) else name.decode("latin-1")
    return text.lower().replace("-", "_") in SENSITIVE_NAMES
