"""Reading LLMServingSim's newer kernel profiles: CSV texts by tokens, by sequences and of joint attention batches.

Every reader returns seconds of one kernel of one layer on one GPU, without tensor parallelism.
"""

import csv
import gzip
import io
import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from loadtest.engine.fitting.sources import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionPoint:
    """One measured call: at most one prompt chunk, and decodes whose contexts are equally long."""

    new_tokens: int
    """Of the chunk; 0 where the batch only decodes."""
    tokens_before: int
    """Whose KV the chunk finds in the cache."""
    decodes: int
    context_tokens: int
    """Of each decode."""
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelProfile:
    """What vLLM's kernels take for one model on one GPU."""

    dense: Table
    """By layer name, then by tokens."""
    per_sequence: Table
    """By layer name, then by sequences."""
    attention: tuple[AttentionPoint, ...]


def profile_file(profile: str) -> str:
    """The name of the file with a profile, such as that of `RTX4090_llama-3.1-8b`."""
    return f"llmservingsim_{profile}_tp1_perf.json.gz"


def read_profile(data: Path, profile: str) -> KernelProfile:
    """The profile called `profile`; `OSError` where `data` has none."""
    with gzip.open(data / profile_file(profile), "rt", encoding="utf-8") as file:
        texts: dict[str, str] = json.load(file)
    return KernelProfile(
        dense=_table(texts["dense"], "tokens"),
        per_sequence=_table(texts["per_sequence"], "sequences"),
        attention=tuple(_points(texts["attention"])),
    )


def _table(text: str, size: str) -> Table:
    table: Table = defaultdict(dict)
    for row in csv.DictReader(io.StringIO(text)):
        table[row["layer"]][int(row[size])] = float(row["time_us"]) / 1e6
    return dict(table)


def _points(text: str) -> list[AttentionPoint]:
    return [
        AttentionPoint(
            new_tokens=int(row["prefill_chunk"]),
            tokens_before=int(row["kv_prefill"]),
            decodes=int(row["n_decode"]),
            context_tokens=int(row["kv_decode"]),
            seconds=float(row["time_us"]) / 1e6,
        )
        for row in csv.DictReader(io.StringIO(text))
    ]
