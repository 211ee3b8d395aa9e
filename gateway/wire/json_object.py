"""Editing the top level of a JSON object without touching its other values.

The rule of this module: a value that is not replaced keeps its bytes (big integers, floats, key order inside it,
escapes), and keys keep their order. Only the spacing between top-level members may change, and `splice` leaves
that too.
"""

import re
from collections.abc import Mapping
from functools import lru_cache

import msgspec

_decode = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def replace(body: bytes, edits: Mapping[str, bytes | None]) -> bytes:
    """Set each edited key to the given JSON text, or remove it where that is None.

    A key that the body lacks goes to the end. Of a repeated key the last value stays, at the place of the first,
    which is what workers read. A body that needs no change comes back as it is.

    Raises:
        ValueError: `body` is not a JSON object.
    """
    try:
        members: dict[str, bytes | msgspec.Raw] = {**_decode(body)}
    except RecursionError as error:
        raise ValueError("the JSON object is nested too deeply") from error
    changed = False
    for key, value in edits.items():
        if value is not None:
            members[key] = value
            changed = True
        elif members.pop(key, None) is not None:
            changed = True
    return _join(members) if changed else body


def splice(body: bytes, key: str, value: bytes) -> bytes:
    """Set one key to the given JSON text and touch no other byte; a key that the body lacks goes to the end.

    Where the bytes of the old value stand behind the key in more than one place (a repeated key, the same member
    further inside), this cannot be done by looking, and `replace` does it.

    Raises:
        ValueError: `body` is not a JSON object.
    """
    try:
        members = _decode(body)
    except RecursionError as error:
        raise ValueError("the JSON object is nested too deeply") from error
    if key in members:
        span = _only_span(body, key, bytes(members[key]))
        return replace(body, {key: value}) if span is None else body[: span[0]] + value + body[span[1] :]
    end = body.rindex(b"}")
    comma = b"," if members else b""
    return b"".join((body[:end], comma, msgspec.json.encode(key), b":", value, body[end:]))


def _only_span(body: bytes, key: str, value: bytes) -> tuple[int, int] | None:
    """Where `value` stands behind `key`; None unless that is one place."""
    found = None
    for match in _key_pattern(key).finditer(body):
        start = match.end()
        if body.startswith(value, start):
            if found is not None:
                return None
            found = start, start + len(value)
    return found


@lru_cache(maxsize=32)
def _key_pattern(key: str) -> re.Pattern[bytes]:
    return re.compile(rb"%b[ \t\r\n]*:[ \t\r\n]*" % re.escape(msgspec.json.encode(key)))


def _join(members: Mapping[str, bytes | msgspec.Raw]) -> bytes:
    pieces: list[bytes | msgspec.Raw] = []
    opening = b"{"
    for key, value in members.items():
        pieces += (opening, msgspec.json.encode(key), b":", value)
        opening = b","
    return b"".join((*pieces, b"}")) if pieces else b"{}"
