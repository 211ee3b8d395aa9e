"""The journal of a router: every call to the core as one JSON line, and its answers in canonical form.

The rule of this module: what is decoded equals what was encoded, to the last bit of every float, so that a journal
replayed through another host of the core must give byte-identical answers. Payload types are named by class and come
from a closed list.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import isfinite
from typing import get_args

import msgspec

from gateway.core.events import Event
from gateway.core.types import RequestFacts

Payload = Event | RequestFacts
Detail = str | int | float | bool | list[str] | None

PAYLOAD_TYPES: Mapping[str, type[Payload]] = {cls.__name__: cls for cls in (*get_args(Event), RequestFacts)}


class CallName(StrEnum):
    """The calls that a journal holds."""

    OPEN = "open"
    """The first one: the router is made; details `seed`, `instance` and `policy`, its description."""
    ADOPT = "adopt"
    """Another policy; detail `policy`."""
    SUBMIT = "submit"
    """Payload the facts; details `exclude` and `attempt`."""
    RELEASE = "release"
    """Those that waited are routed."""
    GIVE_UP = "give_up"
    """Detail `ticket`."""
    ABORT = "abort"
    """Details `decision_id` and `blame`."""
    OBSERVE = "observe"
    """Payload the event."""
    TICK = "tick"


class JournalError(ValueError):
    """A line that is no call, or a call that cannot be written down exactly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalCall:
    """One call of a method of the core."""

    name: str
    now_s: float
    payload: Payload | None = None
    details: Mapping[str, Detail] = field(default_factory=dict)
    """Further arguments by name."""


class _Line(msgspec.Struct, kw_only=True, omit_defaults=True):
    call: str
    now_s: float
    type: str | None = None
    payload: msgspec.Raw = msgspec.Raw(b"null")
    details: dict[str, Detail] = {}


_decode_line = msgspec.json.Decoder(_Line).decode
_decode_payload = {name: msgspec.json.Decoder(cls).decode for name, cls in PAYLOAD_TYPES.items()}


def encode_call(
    name: str, now_s: float, payload: Payload | None = None, *, details: Mapping[str, Detail] | None = None
) -> bytes:
    """One line, with its newline, for a call of `name` at `now_s`.

    Raises:
        JournalError: the payload's type is not on the list, or a number in it (a NaN, an infinity) has no JSON.
    """
    if not isfinite(now_s):
        raise JournalError(f"a call cannot happen at {now_s} s")
    line = _Line(call=name, now_s=float(now_s), details=dict(details or {}))
    if payload is not None:
        line.type = type(payload).__name__
        line.payload = _encode_payload(payload)
    return canonical(line) + b"\n"


def decode_call(line: bytes) -> JournalCall:
    """Read a line back.

    Raises:
        JournalError: the line is not one that `encode_call` writes.
    """
    try:
        read = _decode_line(line)
        payload = _decode_payload[read.type](read.payload) if read.type is not None else None
    except KeyError as error:
        raise JournalError(f"unknown payload type {error}") from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise JournalError(f"not a journal line: {error}") from error
    return JournalCall(name=read.call, now_s=read.now_s, payload=payload, details=read.details)


def _encode_payload(payload: Payload) -> msgspec.Raw:
    name = type(payload).__name__
    if PAYLOAD_TYPES.get(name) is not type(payload):
        raise JournalError(f"{name} is no payload of a journal")
    try:
        encoded = canonical(payload)
        exact = _decode_payload[name](encoded) == payload
    except msgspec.DecodeError:
        exact = False
    if not exact:
        raise JournalError(f"{name} holds a number that JSON cannot carry: {payload}")
    return msgspec.Raw(encoded)


def read_pairs(lines: Iterable[bytes]) -> Iterator[tuple[JournalCall, bytes]]:
    """The calls of a journal in order, each with the canonical form of its answer; a last pair cut short is left out.

    Raises:
        JournalError: a line is no call.
    """
    remaining = iter(lines)
    for line in remaining:
        answer = next(remaining, b"")
        if not answer.endswith(b"\n"):
            return
        yield decode_call(line), answer.removesuffix(b"\n")


def canonical(obj: object) -> bytes:
    """JSON with one spelling per value: equal bytes mean equal decisions, refusals, events or facts."""
    return msgspec.json.encode(obj, order="deterministic")
