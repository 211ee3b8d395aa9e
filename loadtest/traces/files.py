"""Opens trace files and reads their lines.

The rule of this module: whatever is wrong with a file is a `TraceError` that names the file and the line.
"""

import gzip
import io
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TypeVar

import msgspec

from loadtest.traces.types import TraceError

GZIP_MAGIC = b"\x1f\x8b"
Row = TypeVar("Row")


@contextmanager
def opened(path: Path) -> Iterator[IO[str]]:
    """The file as text, decompressed where its first bytes say gzip."""
    try:
        with path.open("rb") as raw:
            zipped = raw.read(2) == GZIP_MAGIC
            raw.seek(0)
            with gzip.open(raw) if zipped else raw as stream:
                yield io.TextIOWrapper(stream, encoding="utf-8", newline="")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise TraceError(f"{path}: {error}") from error


def json_lines(name: str, file: Iterable[str], row: type[Row]) -> Iterator[tuple[int, Row]]:
    """(line number, row) of every line that is not blank, each decoded as `row`."""
    decoder = msgspec.json.Decoder(row)
    for line, text in enumerate(file, start=1):
        if not text.strip():
            continue
        try:
            yield line, decoder.decode(text)
        except msgspec.MsgspecError as error:
            raise TraceError(f"{name}:{line}: {error}") from error
