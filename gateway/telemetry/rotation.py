"""A file of whole lines that is rotated by size.

The rule of this module: `name` is the newest file, `name.1` the one before, up to `name.N`. No line is split over
two files, and a line that was cut short is always the last of its file.
"""

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol


class AppendFile(Protocol):
    """An unbuffered file open for appending."""

    def write(self, data: memoryview, /) -> int | None:
        """Write some leading bytes of `data` and say how many; raises OSError."""
        ...

    def truncate(self, size: int, /) -> int:
        """Cut the file to `size` bytes."""
        ...

    def close(self) -> None:
        """Close the file."""
        ...


Opener = Callable[[Path], AppendFile]
"""Opens a file for appending and makes it where it is missing."""


def open_append(path: Path) -> AppendFile:
    """The opener for real files; makes the folder too."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.open("ab", buffering=0)


class RotatingFile:
    """Appends chunks of whole lines to `path`, and starts a new file before one would grow past `max_bytes`.

    `keep` older files stay. A chunk longer than `max_bytes` gets a file of its own.
    """

    def __init__(self, path: Path, *, max_bytes: int, keep: int, opener: Opener = open_append) -> None:
        self._path: Final = path
        self._max_bytes: Final = max_bytes
        self._keep: Final = keep
        self._opener: Final = opener
        self._file: AppendFile | None = None
        self._size_bytes = 0

    def write(self, chunk: bytes) -> None:
        """Append all of `chunk`, or nothing of it and raise OSError; the next call opens the file anew."""
        file = self._file or self._open()
        if self._size_bytes and self._size_bytes + len(chunk) > self._max_bytes:
            self._rotate()
            file = self._open()
        try:
            _write_all(file, chunk)
        except OSError:
            self._undo(file)
            raise
        self._size_bytes += len(chunk)

    def close(self) -> None:
        """Close the file; a later write opens it again."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self) -> AppendFile:
        # What a crash cut short stays the last line of its file: readers skip it there.
        if _is_torn(self._path):
            self._rotate()
        self._file = self._opener(self._path)
        self._size_bytes = self._path.stat().st_size if self._path.exists() else 0
        return self._file

    def _undo(self, file: AppendFile) -> None:
        with contextlib.suppress(OSError):
            file.truncate(self._size_bytes)
        self.close()

    def _rotate(self) -> None:
        self.close()
        for number in range(self._keep, 0, -1):
            newer = rotated(self._path, number - 1)
            if newer.exists():
                newer.replace(rotated(self._path, number))
        if self._keep == 0:
            self._path.unlink()


def rotated(path: Path, number: int) -> Path:
    """The file that is `number` rotations old; `path` itself for 0."""
    return path.with_name(f"{path.name}.{number}") if number else path


def log_files(path: Path) -> list[Path]:
    """The files of a rotated log that exist, oldest first, `path` itself last."""
    prefix = f"{path.name}."
    numbers = [
        int(sibling.name.removeprefix(prefix))
        for sibling in path.parent.glob(f"{path.name}.*")
        if sibling.name.removeprefix(prefix).isdecimal()
    ]
    files = [rotated(path, number) for number in sorted(numbers, reverse=True)]
    return [*files, path] if path.exists() else files


def _write_all(file: AppendFile, chunk: bytes) -> None:
    rest = memoryview(chunk)
    while rest:
        rest = rest[file.write(rest) or 0 :]


def _is_torn(path: Path) -> bool:
    if not path.exists() or path.stat().st_size == 0:
        return False
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"
