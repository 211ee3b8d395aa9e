"""Reads traces by name: `mooncake:PATH`, `azure:PATH` or `synthetic:mooncake`.

The rule of this module: a trace is read no further than its limit asks for, and whatever is wrong with a file
is a `TraceError` that names the file and the line.
"""

import csv
import gzip
import io
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import chain, groupby, islice, pairwise
from operator import attrgetter
from pathlib import Path
from typing import IO

import msgspec
import numpy as np

from loadtest.traces.synthetic import SyntheticMix, synthetic_trace
from loadtest.traces.types import MOONCAKE_BLOCK_TOKENS, TraceError, TraceRequest

MOONCAKE_TICK_S = 3.0
"""Mooncake's traces round arrivals down to ticks of this length, of some ten requests each."""
SYNTHETIC_REQUESTS = 12_031
"""Length of `synthetic:mooncake` without a limit: that of the trace it is fitted to."""
GZIP_MAGIC = b"\x1f\x8b"


class _MooncakeRow(msgspec.Struct, frozen=True):
    timestamp: float
    """Milliseconds since the trace began."""
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """One row as the file has it, in seconds."""

    line: int
    at_s: float
    input_tokens: int
    output_tokens: int
    hash_ids: tuple[int, ...] = ()


def load_trace(spec: str, *, limit: int | None = None, seed: int = 0, rate_scale: float = 1.0) -> list[TraceRequest]:
    """The first `limit` requests of a trace in order of arrival; a `rate_scale` of 2 doubles the rate.

    The seed spreads arrivals that a file rounds, and makes a synthetic trace. What a file yields does not
    depend on the limit. Raises `TraceError` where the spec is unknown, the file cannot be read or a row is
    not what its format says.
    """
    kind, _, name = spec.partition(":")
    if rate_scale <= 0:
        raise TraceError(f"the rate scale must be above 0, got {rate_scale:g}")
    requests = _loader(kind, spec)(name, limit, seed)
    if not requests:
        raise TraceError(f"{spec}: no requests")
    return [replace(request, arrival_s=request.arrival_s / rate_scale) for request in requests]


def _loader(kind: str, spec: str) -> Callable[[str, int | None, int], list[TraceRequest]]:
    loaders = {"mooncake": _load_mooncake, "azure": _load_azure, "synthetic": _load_synthetic}
    if kind not in loaders or spec in loaders:
        raise TraceError(f"unknown trace {spec!r}: use mooncake:PATH, azure:PATH or synthetic:mooncake")
    return loaders[kind]


def _load_mooncake(name: str, limit: int | None, seed: int) -> list[TraceRequest]:
    rng = np.random.default_rng(seed)
    with _opened(Path(name)) as file:
        rows = _in_order(_mooncake_rows(name, file), name)
        return _requests(islice(_spread_over_ticks(rows, rng), limit))


def _load_azure(name: str, limit: int | None, seed: int) -> list[TraceRequest]:
    del seed  # Azure's arrivals are exact.
    with _opened(Path(name)) as file:
        return _requests(islice(_in_order(_azure_rows(name, file), name), limit))


def _load_synthetic(name: str, limit: int | None, seed: int) -> list[TraceRequest]:
    if name != "mooncake":
        raise TraceError(f"unknown synthetic trace {name!r}: the one there is, is synthetic:mooncake")
    requests = SYNTHETIC_REQUESTS if limit is None else limit
    return synthetic_trace(SyntheticMix(), requests, seed=seed)


@contextmanager
def _opened(path: Path) -> Iterator[IO[str]]:
    """The file as text, decompressed where its first bytes say gzip."""
    try:
        with path.open("rb") as raw:
            zipped = raw.read(2) == GZIP_MAGIC
            raw.seek(0)
            with gzip.open(raw) if zipped else raw as stream:
                yield io.TextIOWrapper(stream, encoding="utf-8", newline="")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise TraceError(f"{path}: {error}") from error


def _mooncake_rows(name: str, file: IO[str]) -> Iterator[_Row]:
    decoder = msgspec.json.Decoder(_MooncakeRow)
    for line, text in enumerate(file, start=1):
        if not text.strip():
            continue
        try:
            row = decoder.decode(text)
        except msgspec.MsgspecError as error:
            raise TraceError(f"{name}:{line}: {error}") from error
        yield _Row(
            line=line,
            at_s=row.timestamp / 1000.0,
            input_tokens=row.input_length,
            output_tokens=row.output_length,
            hash_ids=row.hash_ids,
        )


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
        yield _Row(
            line=reader.line_num,
            at_s=(at - began).total_seconds(),
            input_tokens=prompt,
            output_tokens=output,
        )


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
    """Spreads the rows that share a timestamp evenly over the time up to the next one, at most one tick.

    A timestamp that only one row has is exact: traces without ticks pass unchanged.
    """
    ticks = (list(rows) for _, rows in groupby(rows, key=attrgetter("at_s")))
    for tick, after in pairwise(chain(ticks, (None,))):
        assert tick is not None
        if len(tick) == 1:
            yield tick[0]
            continue
        width_s = min(MOONCAKE_TICK_S, after[0].at_s - tick[0].at_s) if after else MOONCAKE_TICK_S
        offsets_s = np.sort(rng.uniform(0.0, width_s, len(tick)))
        for row, offset_s in zip(tick, offsets_s.tolist(), strict=True):
            yield replace(row, at_s=row.at_s + offset_s)


def _requests(rows: Iterator[_Row]) -> list[TraceRequest]:
    return [
        TraceRequest(
            index=index,
            arrival_s=row.at_s,
            input_tokens=row.input_tokens,
            output_tokens=row.output_tokens,
            hash_ids=row.hash_ids,
            block_tokens=MOONCAKE_BLOCK_TOKENS,
        )
        for index, row in enumerate(rows)
    ]
