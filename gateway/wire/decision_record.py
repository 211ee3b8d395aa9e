"""The decision log's record, as training reads it.

The rule of this module: one JSON line per request, with a schema version, holding what the core knew and what came
of it. No prompt text, no headers and no keys can get in: the types have no place for them. Nothing here opens a
file.
"""

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from gateway.core.types import Decision, Outcome, Refusal

SCHEMA_VERSION: Final = 1
"""Raised when a field's meaning changes or a field goes; a new field with a default does not raise it."""


class DecisionRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One request from arrival to end.

    Exactly one of `decision` (the last one, after retries) and `refusal` is set; neither is where the request never
    got to the core.
    """

    schema: int = SCHEMA_VERSION
    request_id: str
    arrived_at_s: float
    """Wall-clock arrival, in seconds since 1970."""
    model: str | None
    """The model that the client asked for; None where the request could not be read."""
    decision: Decision | None = None
    refusal: Refusal | None = None
    outcome: Outcome


class DecisionLogError(ValueError):
    """A line of a decision log that is not a record of this schema version."""


class _Versioned(msgspec.Struct, frozen=True):
    schema: int


_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder(DecisionRecord)
_version_decoder: Final = msgspec.json.Decoder(_Versioned)


class RecordEncoder:
    """Encodes records one after the other in one buffer, which is as long as the longest yet; for one thread."""

    __slots__ = ("_buffer",)

    def __init__(self) -> None:
        self._buffer: Final = bytearray()

    def encode(self, record: DecisionRecord) -> bytes:
        """The record as one line, with its newline."""
        buffer = self._buffer
        _encoder.encode_into(record, buffer)
        buffer += b"\n"
        return bytes(buffer)


def encode_record(record: DecisionRecord) -> bytes:
    """The record as one line, with its newline."""
    return RecordEncoder().encode(record)


def decode_record(line: bytes) -> DecisionRecord:
    """The record of one line; raises msgspec.MsgspecError where it is none of this schema version."""
    schema = _version_decoder.decode(line).schema
    if schema != SCHEMA_VERSION:
        raise msgspec.ValidationError(f"schema version {schema}, this release reads {SCHEMA_VERSION}")
    return _decoder.decode(line)


def decode_records(lines: Iterable[bytes]) -> Iterator[DecisionRecord]:
    """The records of a log's lines; a last line that was cut short (by a crash, or as it is written) is skipped.

    Raises DecisionLogError, with the line's number, for any other line that is not a record.
    """
    for number, line in enumerate(lines, start=1):
        try:
            yield decode_record(line)
        except msgspec.MsgspecError as error:
            if not line.endswith(b"\n"):
                return
            raise DecisionLogError(f"line {number}: {error}") from error
