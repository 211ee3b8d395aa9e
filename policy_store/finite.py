"""Finding numbers that are none.

The rule of this module: NaN and infinity are refused wherever they stand, and the refusal says where.
"""

import json
import math
from collections.abc import Iterator, Mapping

import msgspec


def non_finite(value: object, where: str) -> Iterator[str]:
    """Where in a tree of structures, mappings and sequences a number is not finite."""
    if isinstance(value, float):
        if not math.isfinite(value):
            yield where
    elif isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            yield from non_finite(getattr(value, name), f"{where}.{name}")
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from non_finite(inner, f"{where}.{key}")
    elif isinstance(value, list | tuple):
        for index, inner in enumerate(value):
            yield from non_finite(inner, f"{where}[{index}]")


def non_finite_json(raw: bytes, where: str) -> Iterator[str]:
    """The same of a JSON text with numbers that strict JSON has no words for, as Python's own writer makes them."""
    try:
        tree = json.loads(raw)
    except (ValueError, RecursionError):
        return
    yield from non_finite(tree, where)
