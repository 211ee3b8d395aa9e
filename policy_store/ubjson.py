"""Reads UBJSON, the format that XGBoost saves its models in.

The rule of this module: it reads bytes that may be wrong; whatever is not well-formed is a `UbjsonError`.
"""

from collections.abc import Callable
from struct import Struct

import numpy as np

MAX_DEPTH = 32
MAX_ITEMS = 1 << 24
_NUMBERS = {
    "i": (Struct(">b"), ">i1"), "U": (Struct(">B"), ">u1"), "I": (Struct(">h"), ">i2"), "l": (Struct(">i"), ">i4"),
    "L": (Struct(">q"), ">i8"), "d": (Struct(">f"), ">f4"), "D": (Struct(">d"), ">f8"),
}  # fmt: skip
_INTEGERS = frozenset("iUIlL")
_CONSTANTS = {"Z": None, "T": True, "F": False}

Value = None | bool | int | float | str | list["Value"] | dict[str, "Value"]


class UbjsonError(ValueError):
    """Bytes that are not UBJSON."""


def read_ubjson(data: bytes) -> Value:
    """The one value that the bytes hold.

    Raises:
        UbjsonError: they are cut short, malformed, too deep, or something follows.
    """
    reader = _Reader(data)
    value = reader.value(reader.marker(), 0)
    if reader.at != len(data):
        raise UbjsonError(f"{len(data) - reader.at} bytes follow the value")
    return value


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, count: int) -> bytes:
        if count < 0 or count > len(self.data) - self.at:
            raise UbjsonError(f"cut short at byte {self.at}")
        taken = self.data[self.at : self.at + count]
        self.at += count
        return taken

    def marker(self) -> str:
        return chr(self.take(1)[0])

    def ahead(self) -> str:
        return chr(self.data[self.at]) if self.at < len(self.data) else ""

    def value(self, kind: str, depth: int) -> Value:
        if depth > MAX_DEPTH:
            raise UbjsonError(f"deeper than {MAX_DEPTH}")
        if kind in _CONSTANTS:
            return _CONSTANTS[kind]
        if kind in _NUMBERS:
            return self.number(kind)
        containers: dict[str, Callable[[int], Value]] = {"[": self.array, "{": self.object}
        if kind in containers:
            return containers[kind](depth)
        if kind in {"S", "H"}:
            return self.string()
        if kind == "C":
            return self.marker()
        raise UbjsonError(f"unknown marker {kind!r} before byte {self.at}")

    def number(self, kind: str) -> int | float:
        packed = _NUMBERS[kind][0]
        number: int | float = packed.unpack(self.take(packed.size))[0]
        return number

    def count(self) -> int:
        kind = self.marker()
        if kind not in _INTEGERS:
            raise UbjsonError(f"a length cannot be {kind!r}")
        count = int(self.number(kind))
        if not 0 <= count <= MAX_ITEMS:
            raise UbjsonError(f"a length of {count}")
        return count

    def string(self) -> str:
        try:
            return self.take(self.count()).decode()
        except UnicodeDecodeError as error:
            raise UbjsonError(f"not UTF-8 before byte {self.at}") from error

    def head(self) -> tuple[str | None, int | None]:
        """A container's optional item type and item count."""
        kind = count = None
        if self.ahead() == "$":
            self.take(1)
            kind = self.marker()
        if self.ahead() == "#":
            self.take(1)
            count = self.count()
        if kind is not None and count is None:
            raise UbjsonError("a typed container without a length")
        return kind, count

    def array(self, depth: int) -> Value:
        kind, count = self.head()
        if kind in _NUMBERS and count is not None:
            kind_of = np.dtype(_NUMBERS[kind][1])
            items: list[Value] = np.frombuffer(self.take(count * kind_of.itemsize), dtype=kind_of).tolist()
            return items
        values: list[Value] = []
        while self.goes_on(len(values), count, "]"):
            values.append(self.value(kind or self.marker(), depth + 1))
        return values

    def object(self, depth: int) -> Value:
        kind, count = self.head()
        values: dict[str, Value] = {}
        while self.goes_on(len(values), count, "}"):
            key = self.string()
            if key in values:
                raise UbjsonError(f"{key!r} twice")
            values[key] = self.value(kind or self.marker(), depth + 1)
        return values

    def goes_on(self, done: int, count: int | None, end: str) -> bool:
        if count is not None:
            return done < count
        if self.ahead() == end:
            self.take(1)
            return False
        return True
