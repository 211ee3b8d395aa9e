"""Editing the top level of a JSON object without touching its other values.

The rule of this module: a value that is not replaced keeps its bytes (big integers, floats, key order inside it,
escapes), and keys keep their order. Only the spacing between top-level members may change.
"""

from collections.abc import Mapping

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


def _join(members: Mapping[str, bytes | msgspec.Raw]) -> bytes:
    pieces: list[bytes | msgspec.Raw] = []
    opening = b"{"
    for key, value in members.items():
        pieces += (opening, msgspec.json.encode(key), b":", value)
        opening = b","
    return b"".join((*pieces, b"}")) if pieces else b"{}"
