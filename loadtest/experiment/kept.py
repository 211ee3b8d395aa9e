"""Files in which results are kept, and what their names must depend on beside the results' own tasks.

The rule of this module: a file is there wholly or not at all, whoever else writes it at the same time.
"""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO


@contextmanager
def written_whole(file: Path) -> Iterator[BinaryIO]:
    """A stream whose content is the file's once it ends well; its directory is made where it is missing."""
    file.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=file.parent, suffix=".part")
    with os.fdopen(descriptor, "wb") as stream:
        yield stream
    Path(name).replace(file)


def stamp(path: Path) -> tuple[int, int] | None:
    """By which a file is told from another one of its name; None where it is not there."""
    if not path.is_file():
        return None
    found = path.stat()
    return found.st_size, found.st_mtime_ns


@cache
def sources_hash(names: tuple[str, ...]) -> str:
    """Of modules of this package, named like `compare/serving`."""
    package = Path(__file__).parents[1]
    return sha256(b"".join((package / f"{name}.py").read_bytes() for name in names)).hexdigest()
