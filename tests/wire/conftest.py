"""Recordings of real engines; tests that need them skip by name where they are absent."""

import os
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpMessage:
    """A recorded request or response, its body without the chunked framing."""

    status: int | None
    body: bytes


def _unchunk(data: bytes) -> bytes:
    body = b""
    while data:
        size_line, _, data = data.partition(b"\r\n")
        size = int(size_line, 16)
        body, data = body + data[:size], data[size + 2 :]
    return body


def _parse(raw: bytes) -> HttpMessage:
    head, _, body = raw.partition(b"\r\n\r\n")
    words = head.split(b" ", 2)
    status = int(words[1]) if words[0].startswith(b"HTTP/") else None
    if b"transfer-encoding: chunked" in head.lower():
        body = _unchunk(body)
    return HttpMessage(status=status, body=body)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recordings:
    """The folder of recordings."""

    root: Path

    def path(self, name: str) -> Path:
        """One recording; the test skips where it is absent."""
        path = self.root / name
        if not path.exists():
            pytest.skip(f"recording {name} is absent")
        return path

    def bytes(self, name: str) -> bytes:
        return self.path(name).read_bytes()

    def http(self, name: str) -> HttpMessage:
        """A message of http/: `tiny/chat_stream.response` and the like."""
        return _parse(self.bytes(f"http/{name}.bin"))

    def names(self, folder: str, suffix: str) -> list[str]:
        """The names in a folder of http/ that end in `suffix`, without it."""
        found = sorted(self.path(f"http/{folder}").glob(f"*{suffix}"))
        assert found, f"no {suffix} in {folder}"
        return [path.name.removesuffix(suffix) for path in found]


@pytest.fixture(scope="session")
def recordings() -> Recordings:
    shared = Path(os.environ.get("TIDEGATE_SHARED", Path(__file__).parents[3] / "shared"))
    if not (shared / "fixtures").is_dir():
        pytest.skip("the recordings of real engines (shared/fixtures) are absent")
    return Recordings(root=shared / "fixtures")
