"""Writing down every call to the router, to replay it elsewhere.

The rule of this module: two lines per call, the call as `gateway.wire.journal` encodes it and the canonical form of
what it returned. A journal begins with its router: replayed from the start through another host of the core, the
same calls must return the same bytes. It is off unless asked for, and it holds no prompt text (facts carry hashes).
"""

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from gateway.wire.journal import Detail, Payload, canonical, encode_call


class JournalWriter:
    """Appends calls to a new file; buffered, so a crash loses the last ones.

    Raises FileExistsError where `path` exists: calls of two routers in one file cannot be replayed.
    """

    def __init__(self, path: Path) -> None:
        self._file: Final = path.open("xb")

    def call(
        self,
        name: str,
        now_s: float,
        payload: Payload | None,
        result: object,
        *,
        details: Mapping[str, Detail] | None = None,
    ) -> None:
        """Write down a call of the router's method `name` that has just returned `result`.

        `details` are the call's further arguments. Raises JournalError where the call cannot be written exactly.
        """
        line = encode_call(name, now_s, payload, details=details)
        self._file.write(line + canonical(result) + b"\n")

    def close(self) -> None:
        """Write out what is buffered and close the file."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
