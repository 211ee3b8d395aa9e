"""Finding the fields of a multipart/form-data body without copying its files.

The rule of this module: a strict reading (RFC 2046, RFC 7578). Bytes that two readers could take in two ways are
refused, because the worker reads the same bytes.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

MAX_PARTS = 1000
"""Starlette's own limit of fields, and of files."""
MAX_HEAD_BYTES = 8192
"""The headers of one part."""

_BOUNDARY = re.compile(rb';[ \t]*boundary=(?:"([^"\\\r\n]{1,200})"|([^\s";,]{1,200}))[ \t]*(?:;|$)', re.IGNORECASE)
_DISPOSITION = re.compile(rb"(?:^|\r\n)content-disposition:[ \t]*form-data([^\r\n]*)", re.IGNORECASE)
_PARAMETER = re.compile(rb';[ \t]*([\w*-]+)=("(?:[^"\\]|\\.)*"|[^\s";]*)[ \t]*')
_FOLDED = re.compile(rb"\r\n[ \t]")
_PARAMETERS = re.compile(rb"(?:%b)*" % _PARAMETER.pattern)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One part: its field name and where its content stands in the body."""

    name: str
    is_file: bool
    start: int
    end: int


def boundary_of(content_type: bytes) -> bytes | None:
    """The boundary that a content type names; None where it is not multipart/form-data, or names none."""
    kind = content_type.split(b";", 1)[0].strip().lower()
    match = _BOUNDARY.search(content_type) if kind == b"multipart/form-data" else None
    return (match[1] or match[2]) if match else None


def parts_of(body: bytes, boundary: bytes) -> Sequence[Part]:
    """All parts, in their order.

    Raises:
        ValueError: the body is not what its boundary promises.
    """
    fence = b"\r\n--" + boundary
    at = 0 if body.startswith(fence[2:]) else body.find(fence) + 2
    if at == 1:
        raise ValueError("the boundary does not occur in the body")
    at += len(fence) - 2
    parts: list[Part] = []
    while not body.startswith(b"--", at):
        if not body.startswith(b"\r\n", at):
            raise ValueError(f"no line end after the boundary (byte {at})")
        if len(parts) == MAX_PARTS:
            raise ValueError(f"more than {MAX_PARTS} parts")
        part = _part(body, at, fence)
        parts.append(part)
        at = part.end + len(fence)
    return parts


def _part(body: bytes, at: int, fence: bytes) -> Part:
    """The part whose first header line follows the line end at `at`."""
    head_end = body.find(b"\r\n\r\n", at, at + MAX_HEAD_BYTES)
    if head_end < 0:
        raise ValueError(f"the headers of the part at byte {at} do not end")
    start = head_end + 4
    end = body.find(fence, start)
    if end < 0:
        raise ValueError(f"the part at byte {at} does not end")
    name, is_file = _field(body[at + 2 : head_end], at)
    return Part(name=name, is_file=is_file, start=start, end=end)


def _field(head: bytes, at: int) -> tuple[str, bool]:
    """The field's name, and whether a file came in it."""
    dispositions = _DISPOSITION.findall(head)
    one = len(dispositions) == 1 and _PARAMETERS.fullmatch(dispositions[0]) and not _FOLDED.search(head)
    parameters = _PARAMETER.findall(dispositions[0]) if one else []
    names = [value for key, value in parameters if key.lower() == b"name"]
    if len(names) != 1:
        raise ValueError(f"the part at byte {at} needs one content-disposition with one name")
    keys = {key.lower() for key, _ in parameters}
    return names[0].strip(b'"').decode("utf-8", "replace"), not keys.isdisjoint({b"filename", b"filename*"})
