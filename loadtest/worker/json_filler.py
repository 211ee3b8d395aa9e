"""JSON that fits a schema: words without meaning, as in `loadtest.worker.filler`, fixed by a key.

What is understood: types, properties, required, items, lengths and bounds, enum, const, local references, and the
first way of anyOf, oneOf and allOf. A pattern is not followed. Every document is ASCII.
"""

import json
from collections.abc import Mapping

from loadtest.worker import filler
from loadtest.worker.tokenizer import TOKEN_BYTES

Schema = Mapping[str, object]

OPTIONAL_DEPTH = 3
"""Optional properties are left out from this depth on, so that a schema that names itself comes to an end."""
MAX_DEPTH = 32
"""Deeper than this there is only null: the schema requires itself."""
_FORMATS = {
    "date": "2026-01-01",
    "time": "12:00:00Z",
    "date-time": "2026-01-01T12:00:00Z",
    "email": "someone@example.org",
    "uri": "https://example.org/",
    "uuid": "00000000-0000-4000-8000-000000000000",
}


def document(schema: Schema, key: int, *, characters: int) -> str:
    """A document as near to `characters` as its first free string can bring it, never shorter than it must be."""
    least = _dump(_Sampler(schema, key, spare=0).value(schema, 0))
    spare = characters - len(least)
    return least if spare <= 0 else _dump(_Sampler(schema, key, spare=spare).value(schema, 0))


def _dump(value: object) -> str:
    return json.dumps(value)


class _Sampler:
    """Builds one document; `spare` characters go into the first string that may have them."""

    def __init__(self, root: Schema, key: int, *, spare: int) -> None:
        self._root = root
        self._key = key
        self._spare = spare

    def value(self, schema: Schema, depth: int) -> object:
        schema = self._resolved(schema)
        if "const" in schema:
            return schema["const"]
        choices = schema.get("enum")
        if isinstance(choices, list) and choices:
            return choices[self._key % len(choices)]
        return None if depth > MAX_DEPTH else self._typed(schema, depth)

    def _typed(self, schema: Schema, depth: int) -> object:
        match _kind(schema):
            case "object":
                return self._object(schema, depth)
            case "array":
                return self._array(schema, depth)
            case "integer" | "number" as kind:
                return _number(schema, whole=kind == "integer")
            case "boolean" | "null" as kind:
                return self._key % 2 == 0 if kind == "boolean" else None
            case _:
                return self._string(schema)

    def _resolved(self, schema: Schema) -> Schema:
        for _ in range(MAX_DEPTH):
            reference = schema.get("$ref")
            ways = next((schema[word] for word in ("anyOf", "oneOf", "allOf") if schema.get(word)), None)
            if isinstance(reference, str):
                schema = self._referred(reference)
            elif isinstance(ways, list):
                schema = {**schema, "anyOf": None, "oneOf": None, "allOf": None, **_mapping(ways[0])}
            else:
                return schema
        return {"type": "null"}

    def _referred(self, reference: str) -> Schema:
        found: Schema = self._root
        for name in reference.removeprefix("#").strip("/").split("/") if reference.strip("#/") else ():
            found = _mapping(found.get(name.replace("~1", "/").replace("~0", "~")))
        return found

    def _object(self, schema: Schema, depth: int) -> dict[str, object]:
        properties = _mapping(schema.get("properties"))
        if not properties and schema.get("additionalProperties") is not False:
            properties = {"answer": {"type": "string"}} if depth == 0 else {}
        required = schema.get("required")
        wanted = required if isinstance(required, list) else ()
        return {
            name: self.value(_mapping(each), depth + 1)
            for name, each in properties.items()
            if name in wanted or depth < OPTIONAL_DEPTH
        }

    def _array(self, schema: Schema, depth: int) -> list[object]:
        items = _mapping(schema.get("items"))
        least = _whole(schema.get("minItems"))
        most = _whole(schema.get("maxItems"))
        wanted = (depth < OPTIONAL_DEPTH) if least is None else least
        return [self.value(items, depth + 1) for _ in range(wanted if most is None else min(wanted, most))]

    def _string(self, schema: Schema) -> str:
        known = _FORMATS.get(str(schema.get("format")))
        if known is not None:
            return known
        most = _whole(schema.get("maxLength"))
        length = max(3, _whole(schema.get("minLength")) or 0)
        length = length if most is None else min(length, most)
        room = self._spare if most is None else min(self._spare, most - length)
        self._spare -= room
        return self._words(length + room)

    def _words(self, length: int) -> str:
        text = filler.words(self._key, first=0, count=length // TOKEN_BYTES + 1).decode()
        return text[1 : length + 1].ljust(length, ".")


def _kind(schema: Schema) -> str:
    kind = schema.get("type")
    if isinstance(kind, list):
        return next((str(each) for each in kind if each != "null"), "null")
    if kind is None:
        return "object" if "properties" in schema or not schema else "array" if "items" in schema else "string"
    return str(kind)


def _number(schema: Schema, *, whole: bool) -> int | float:
    """1 where it is allowed, else the nearest bound, rounded up to the step."""
    margin = 1 if whole else 0.5
    lows = [_real(schema.get("minimum")), _shifted(schema.get("exclusiveMinimum"), margin)]
    highs = [_real(schema.get("maximum")), _shifted(schema.get("exclusiveMaximum"), -margin)]
    value = min([1.0, *(bound for bound in highs if bound is not None)])
    value = max([value, *(bound for bound in lows if bound is not None)])
    step = _real(schema.get("multipleOf")) or (1 if whole else None)
    if step is not None:
        value = -(-value // step) * step
    return int(value) if whole else value


def _real(value: object) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _shifted(value: object, by: float) -> float | None:
    bound = _real(value)
    return None if bound is None else bound + by


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _mapping(value: object) -> Schema:
    return value if isinstance(value, dict) else {}
