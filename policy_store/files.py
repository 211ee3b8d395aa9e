"""Files and directories that are there whole or not at all.

The rule of this module: what is written stands beside its place under a hidden name until the disk has it, and takes
its place by one rename.
"""

import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from uuid import uuid4


def hidden_sibling(path: Path) -> Path:
    """A name beside `path` that nobody else uses."""
    return path.with_name(f".{path.name}.{uuid4().hex}")


def put_file(path: Path, raw: bytes) -> None:
    """Write a file, in the place of the one that is there.

    Raises:
        OSError: it cannot be written; the old one stays.
    """
    beside = hidden_sibling(path)
    try:
        _write(beside, raw)
        beside.replace(path)
    except OSError:
        beside.unlink(missing_ok=True)
        raise
    _sync_directory(path.parent)


def put_directory(path: Path, contents: Mapping[str, bytes]) -> None:
    """Write a directory of files, whose names may hold slashes.

    Raises:
        OSError: it cannot be written, or something is there already.
    """
    beside = hidden_sibling(path)
    try:
        beside.mkdir()
        for name, raw in contents.items():
            file = beside / name
            file.parent.mkdir(parents=True, exist_ok=True)
            _write(file, raw)
        for directory, _, _ in os.walk(beside):
            _sync_directory(Path(directory))
        beside.rename(path)
    except OSError:
        shutil.rmtree(beside, ignore_errors=True)
        raise
    _sync_directory(path.parent)


def remove_directory(path: Path) -> None:
    """Take a directory out of the way by one rename, then delete it.

    Raises:
        OSError: it cannot be moved.
    """
    aside = hidden_sibling(path)
    path.rename(aside)
    shutil.rmtree(aside, ignore_errors=True)


def _write(path: Path, raw: bytes) -> None:
    with path.open("xb") as file:
        file.write(raw)
        file.flush()
        os.fsync(file.fileno())


def _sync_directory(path: Path) -> None:
    # Not every file system can; what was renamed is in its place all the same.
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
