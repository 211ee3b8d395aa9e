"""An experiment's directory.

    journal.jsonl            one line per run that is done, in the order in which they ended; the only state
    records/KEY.jsonl        each run's requests, in the schema of live runs, where the plan keeps them
    results.jsonl            the result table, in the plan's order
    results.parquet          the same columns, where pyarrow is installed

The rule of this module: a line is in the journal wholly or not at all, and only once its records are on disk; so a
crash costs no run that had ended. Tables are written beside the old ones and then take their place.
"""

import os
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec

from loadtest.client.records import Record, read_records, write_records
from loadtest.experiment.rows import Row, write_rows


class StoreError(Exception):
    """A directory that cannot be used, with why."""


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the journal."""

    row: Row
    wall_s: float
    """What the run took."""


class Store:
    """The results in one directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._journal = directory / "journal.jsonl"
        self._records = directory / "records"

    def open(self, *, resume: bool) -> dict[str, Entry]:
        """Make the directory; what it already holds, by key.

        Raises:
            StoreError: it holds results and `resume` is false, or its journal is not one.
        """
        self._records.mkdir(parents=True, exist_ok=True)
        content = self._journal.read_bytes() if self._journal.exists() else b""
        if content and not resume:
            raise StoreError(f"{self._directory} holds results: resume them, or choose another directory")
        whole = content[: content.rfind(b"\n") + 1]
        if len(whole) < len(content):
            os.truncate(self._journal, len(whole))  # a line that a crash cut off
        try:
            entries = msgspec.json.Decoder(Entry).decode_lines(whole)
        except msgspec.MsgspecError as error:
            raise StoreError(f"{self._journal}: {error}") from error
        return {entry.row.key: entry for entry in entries}

    def add(self, entry: Entry, records: Sequence[Record] | None) -> None:
        """Keep a run that is done."""
        if records is not None:
            _replace(self.records_file(entry.row.key), lambda path: write_records(path, records))
        with self._journal.open("ab", buffering=0) as journal:
            journal.write(msgspec.json.encode(entry) + b"\n")
            os.fsync(journal.fileno())

    def records(self, key: str) -> list[Record]:
        """A run's requests, in order of arrival; empty where they were not kept."""
        file = self.records_file(key)
        return read_records(file) if file.exists() else []

    def records_file(self, key: str) -> Path:
        """Where a run's requests are."""
        return self._records / f"{key}.jsonl"

    def write_table(self, rows: Sequence[Row]) -> list[Path]:
        """Write the result table in all its forms and return where."""
        lines, columns = self._directory / "results.jsonl", self._directory / "results.parquet"
        _replace(lines, lambda path: path.write_bytes(write_rows(rows)))
        if find_spec("pyarrow") is None:
            return [lines]
        _replace(columns, lambda path: write_parquet(path, rows))
        return [lines, columns]


def write_parquet(path: Path, rows: Sequence[Row]) -> None:
    """Write the table with one column per field of `Row`; dictionaries become maps. Needs pyarrow."""
    import pyarrow as pa  # noqa: PLC0415 (an extra)
    from pyarrow import parquet  # noqa: PLC0415

    kinds = {
        str: pa.string(),
        int: pa.int64(),
        float: pa.float64(),
        float | None: pa.float64(),
        dict[str, int]: pa.map_(pa.string(), pa.int64()),
        dict[str, float | None]: pa.map_(pa.string(), pa.float64()),
    }
    fields = msgspec.structs.fields(Row)
    schema = pa.schema([pa.field(each.name, kinds[each.type]) for each in fields])
    parquet.write_table(pa.table({each.name: _column(rows, each.name) for each in fields}, schema=schema), path)


def _column(rows: Sequence[Row], name: str) -> list[Any]:
    values = [getattr(row, name) for row in rows]
    return [list(value.items()) if isinstance(value, dict) else value for value in values]


def _replace(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file beside its place, then move it there."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    write(draft)
    draft.replace(path)
