"""Readers of files that list requests with their times: Mooncake's and Azure's.

The rule of this module: a file is read no further than its caller takes rows, and in file order; time must not run
backwards.
"""

import csv
from collections.abc import Iterator
from datetime import datetime
from itertools import chain, groupby, pairwise
from operator import attrgetter
from pathlib import Path
from typing import IO, NamedTuple

import msgspec
import numpy as np

from loadtest.traces.files import json_lines, opened
from loadtest.traces.types import TraceError, TraceRequest

MOONCAKE_TICK_S = 3.0
"""Mooncake's traces round arrivals down to ticks of this length, of some ten requests each."""


class _MooncakeRow(msgspec.Struct, frozen=True, gc=False):
    timestamp: float
    """Milliseconds since the trace began."""
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...] = ()


class _Row(NamedTuple):
    """One row as the file has it, in seconds."""

    line: int
    at_s: float
    input_tokens: int
    output_tokens: int
    hash_ids: tuple[int, ...] = ()


def mooncake_requests(name: str, *, jitter: bool, seed: int) -> Iterator[TraceRequest]:
    """The requests of a Mooncake trace.

    With `jitter` the requests that share a timestamp are spread, in file order, over the time up to the next one, at
    most one tick: as they are, they would arrive in bursts that never were. Without it arrivals are the file's.
    """
    rng = np.random.default_rng(seed)
    with opened(Path(name)) as file:
        rows = _in_order(_mooncake_rows(name, file), name)
        yield from _requests(_spread_over_ticks(rows, rng) if jitter else rows)


def azure_requests(name: str) -> Iterator[TraceRequest]:
    """The requests of an Azure trace, whose times count from its first row."""
    with opened(Path(name)) as file:
        yield from _requests(_in_order(_azure_rows(name, file), name))


def _mooncake_rows(name: str, file: IO[str]) -> Iterator[_Row]:
    for line, row in json_lines(name, file, _MooncakeRow):
        yield _Row(line, row.timestamp / 1000.0, row.input_length, row.output_length, row.hash_ids)


def _azure_rows(name: str, file: IO[str]) -> Iterator[_Row]:
    reader = csv.DictReader(file)
    began: datetime | None = None
    for fields in reader:
        try:
            at = datetime.fromisoformat(fields["TIMESTAMP"])
            prompt, output = int(fields["ContextTokens"]), int(fields["GeneratedTokens"])
        except KeyError as error:
            raise TraceError(f"{name}:1: no column {error}") from error
        except (TypeError, ValueError) as error:
            raise TraceError(f"{name}:{reader.line_num}: {error}") from error
        began = began or at
        yield _Row(reader.line_num, (at - began).total_seconds(), prompt, output)


def _in_order(rows: Iterator[_Row], name: str) -> Iterator[_Row]:
    """The same rows, checked: lengths are positive and time does not run backwards."""
    last_s = 0.0
    for row in rows:
        if row.input_tokens < 1 or row.output_tokens < 1:
            raise TraceError(f"{name}:{row.line}: lengths must be at least 1 token")
        if row.at_s < last_s:
            raise TraceError(f"{name}:{row.line}: the timestamp lies before that of the row above")
        last_s = row.at_s
        yield row


def _spread_over_ticks(rows: Iterator[_Row], rng: np.random.Generator) -> Iterator[_Row]:
    """A timestamp that only one row has is exact: traces without ticks pass unchanged."""
    ticks = (list(rows) for _, rows in groupby(rows, key=attrgetter("at_s")))
    for tick, after in pairwise(chain(ticks, (None,))):
        assert tick is not None
        if len(tick) == 1:
            yield tick[0]
            continue
        width_s = min(MOONCAKE_TICK_S, after[0].at_s - tick[0].at_s) if after else MOONCAKE_TICK_S
        offsets_s = np.sort(rng.uniform(0.0, width_s, len(tick)))
        for row, offset_s in zip(tick, offsets_s.tolist(), strict=True):
            yield row._replace(at_s=row.at_s + offset_s)


def _requests(rows: Iterator[_Row]) -> Iterator[TraceRequest]:
    for index, row in enumerate(rows):
        yield TraceRequest(
            index=index,
            arrival_s=row.at_s,
            input_tokens=row.input_tokens,
            output_tokens=row.output_tokens,
            hash_ids=row.hash_ids,
        )
