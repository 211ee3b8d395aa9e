"""Where a worker listens.

An origin is fixed when the fleet is read; what the data plane needs of it on every request (the Host value, the
path prefix) is computed once, here.
"""

from dataclasses import dataclass, field
from urllib.parse import SplitResult, urlsplit

DEFAULT_PORT = 80
_UNSAFE = frozenset(map(chr, [*range(0x21), 0x7F]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """A worker's address and the path prefix that its API lives under; plain HTTP only."""

    host: str
    port: int
    base_path: bytes = b""
    """Prefix put before every request target, without a trailing slash; empty for most workers."""
    authority: bytes = field(init=False, repr=False, compare=False)
    """The Host header's value; connections are shared between origins with an equal authority."""

    def __post_init__(self) -> None:
        host = f"[{self.host}]" if ":" in self.host else self.host
        authority = host if self.port == DEFAULT_PORT else f"{host}:{self.port}"
        object.__setattr__(self, "authority", authority.encode("ascii"))

    def __str__(self) -> str:
        return f"http://{self.authority.decode()}{self.base_path.decode()}"


def parse_origin(url: str) -> Origin:
    """Read a worker's URL, such as `http://10.0.0.7:8000` or `http://gpu-3/prefix/`.

    Raises ValueError for anything but plain HTTP and for parts that an origin cannot have (user, query, fragment).
    """
    if not url.isascii() or not _UNSAFE.isdisjoint(url):
        raise ValueError(f"worker URL has characters outside printable ASCII: {url!r}")
    parts = urlsplit(url)
    if parts.scheme != "http":
        raise ValueError(f"worker URL must begin with http://: {url!r}")
    if not parts.hostname:
        raise ValueError(f"worker URL names no host: {url!r}")
    if "@" in parts.netloc or "?" in url or "#" in url:
        raise ValueError(f"worker URL may hold only a host, a port and a path: {url!r}")
    return Origin(host=parts.hostname, port=_port(parts, url), base_path=parts.path.rstrip("/").encode())


def _port(parts: SplitResult, url: str) -> int:
    try:
        port = parts.port
    except ValueError as error:
        raise ValueError(f"worker URL has a bad port: {url!r}") from error
    if port == 0:
        raise ValueError(f"worker URL has a bad port: {url!r}")
    return DEFAULT_PORT if port is None else port
