"""Rotation by size, torn tails and failing disks."""

from pathlib import Path

import pytest

from gateway.telemetry.rotation import RotatingFile, log_files, open_append


def rotating(path: Path, *, max_bytes: int = 10, keep: int = 2) -> RotatingFile:
    return RotatingFile(path, max_bytes=max_bytes, keep=keep)


class FullDisk:
    """A file on a disk with room for some bytes: a longer write is cut short and the next one fails."""

    def __init__(self, path: Path, room_bytes: int) -> None:
        self.file = open_append(path)
        self.room_bytes = room_bytes

    def write(self, data: memoryview, /) -> int:
        if self.room_bytes == 0:
            raise OSError(28, "No space left on device")
        written = self.file.write(data[: self.room_bytes]) or 0
        self.room_bytes -= written
        return written

    def truncate(self, size: int, /) -> int:
        return self.file.truncate(size)

    def close(self) -> None:
        self.file.close()


def test_a_file_is_rotated_before_it_would_grow_past_its_limit(tmp_path: Path) -> None:
    path = tmp_path / "log"
    file = rotating(path)
    for chunk in (b"aaaa\n", b"bbbb\n", b"cccc\n"):
        file.write(chunk)
    file.close()
    assert (tmp_path / "log.1").read_bytes() == b"aaaa\nbbbb\n"
    assert path.read_bytes() == b"cccc\n"


def test_only_the_newest_files_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "log"
    file = rotating(path, max_bytes=1, keep=2)
    for chunk in (b"1\n", b"2\n", b"3\n", b"4\n"):
        file.write(chunk)
    file.close()
    assert [found.read_bytes() for found in log_files(path)] == [b"2\n", b"3\n", b"4\n"]
    assert sorted(found.name for found in tmp_path.iterdir()) == ["log", "log.1", "log.2"]


def test_without_files_to_keep_only_the_current_one_stays(tmp_path: Path) -> None:
    file = rotating(tmp_path / "log", max_bytes=1, keep=0)
    file.write(b"1\n")
    file.write(b"2\n")
    file.close()
    assert {found.name: found.read_bytes() for found in tmp_path.iterdir()} == {"log": b"2\n"}


def test_a_restart_goes_on_in_the_same_file_and_counts_its_size(tmp_path: Path) -> None:
    path = tmp_path / "log"
    for chunk in (b"aaaa\n", b"bbbb\n", b"cccc\n"):
        file = rotating(path)
        file.write(chunk)
        file.close()
    assert [found.read_bytes() for found in log_files(path)] == [b"aaaa\nbbbb\n", b"cccc\n"]


def test_a_line_cut_short_by_a_crash_stays_the_last_of_its_file(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"a\nhal")
    file = rotating(path)
    file.write(b"b\n")
    file.close()
    assert [found.read_bytes() for found in log_files(path)] == [b"a\nhal", b"b\n"]


def test_the_folder_is_made(tmp_path: Path) -> None:
    path = tmp_path / "new" / "log"
    file = rotating(path)
    file.write(b"a\n")
    file.close()
    assert path.read_bytes() == b"a\n"


def test_a_write_that_fails_half_way_leaves_no_trace(tmp_path: Path) -> None:
    path = tmp_path / "log"
    room_bytes = iter((7, 100))
    file = RotatingFile(path, max_bytes=100, keep=1, opener=lambda path: FullDisk(path, next(room_bytes)))
    file.write(b"aaaa\n")
    with pytest.raises(OSError, match="No space"):
        file.write(b"bbbb\n")
    assert path.read_bytes() == b"aaaa\n"
    file.write(b"cccc\n")
    file.close()
    assert path.read_bytes() == b"aaaa\ncccc\n"
    assert log_files(path) == [path]


def test_other_files_in_the_folder_are_no_part_of_the_log(tmp_path: Path) -> None:
    for name in ("log.2", "log.10", "log.gz", "log", "log.1.bak", "other.1"):
        (tmp_path / name).touch()
    assert [found.name for found in log_files(tmp_path / "log")] == ["log.10", "log.2", "log"]
