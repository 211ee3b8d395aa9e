"""Recorded requests and answers of vLLM 0.32, and how to compare an answer's shape with one."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

RECORDINGS = Path(__file__).parents[4] / "shared" / "fixtures" / "http"
METRICS = RECORDINGS / "tiny" / "get_metrics_after.response.bin"
DATA_KEYED = frozenset({"top_logprobs", "prompt_logprobs"})
"""Objects under these names have tokens for keys."""


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Response:
    status: int
    headers: dict[str, str]
    body: bytes


def request(name: str) -> Request:
    first, headers, body = _parts(_read(f"tiny/{name}.request.bin"))
    method, path, _ = first.split(" ")
    return Request(method, path, headers, body)


def response(name: str) -> Response:
    first, headers, body = _parts(_read(f"tiny/{name}.response.bin"))
    if headers.get("transfer-encoding") == "chunked":
        body = _unchunk(body)
    return Response(int(first.split(" ")[1]), headers, body)


def handover(name: str) -> Any:
    """A JSON recording of the two-leg flow."""
    return json.loads(_read(f"pd_nixl_tiny/{name}.json"))


def handover_stream(name: str) -> bytes:
    return _read(f"pd_nixl_tiny/{name}.sse")


def pooling(name: str) -> Any:
    """A JSON answer of a pooling model."""
    return json.loads(_read(f"pooling/{name}.json"))


def metrics() -> str:
    return _read("tiny/get_metrics_after.response.bin").partition(b"\r\n\r\n")[2].decode()


def shape(value: Any, key: str = "") -> Any:
    """The value with every leaf replaced by its type; objects keep the order of their keys."""
    match value:
        case dict() if key in DATA_KEYED and "logprob" not in value:
            return {"*": _common([shape(item) for item in value.values()])}
        case dict():
            return [(name, shape(item, name)) for name, item in value.items()]
        case list() if key != "bytes":
            return [_common([shape(item, key) for item in value if item is not None])]
        case bool():
            return "truth"
        case _:
            return "number" if isinstance(value, int | float) else type(value).__name__


def distinct(shapes: list[Any]) -> list[Any]:
    """Without repetitions of the one before."""
    return [each for place, each in enumerate(shapes) if place == 0 or each != shapes[place - 1]]


def _common(shapes: list[Any]) -> Any:
    kinds = distinct([each for each in shapes if each != []])
    return kinds[0] if len(kinds) == 1 else kinds


def _read(name: str) -> bytes:
    path = RECORDINGS / name
    if not path.exists():
        pytest.skip(f"no recording {path}")
    return path.read_bytes()


def _parts(raw: bytes) -> tuple[str, dict[str, str], bytes]:
    head, _, body = raw.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    return first, {key.lower(): value for key, value in headers.items()}, body


def _unchunk(raw: bytes) -> bytes:
    parts = []
    while True:
        size, _, rest = raw.partition(b"\r\n")
        if int(size, 16) == 0:
            return b"".join(parts)
        parts.append(rest[: int(size, 16)])
        raw = rest[int(size, 16) + 2 :]
