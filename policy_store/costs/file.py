"""The format of a cost file: what is priced, the numbers, and where they come from.

The rule of this module: one file per engine lies beside it; `python -m loadtest.engine.fit_costs` writes them and
nobody edits them.
"""

import re
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Annotated

import msgspec

from gateway.core.step_cost import AttentionTerms, CostTable, Curve

Seconds = Annotated[float, msgspec.Meta(ge=0)]

_NUMBER_LIST = re.compile(r"\[\s+([-+.\deE,\s]+?)\s+\]")


class Knots(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Points of a piecewise-linear curve."""

    at: tuple[int, ...]
    """Tokens or sequences in the step."""
    seconds: tuple[float, ...]


class Residual(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How far a term lies from measurements, as absolute error relative to the measurement."""

    term: str
    against: str
    points: int
    median: float
    p90: float


class Source(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file that a term was fitted to, and which rows of it."""

    term: str
    file: str
    origin: str
    rows: str


class Provenance(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a cost file's numbers come from and how good they are."""

    formula: tuple[str, ...]
    sources: tuple[Source, ...]
    residuals: tuple[Residual, ...]
    notes: tuple[str, ...]


class CostFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One engine's prices, summed over all its layers."""

    name: str
    step_overhead_s: Seconds
    """Host work and sampling between the kernels of two steps."""
    sequence_overhead_s: Seconds = 0.0
    """Host work per sequence of a step that the GPU waits for."""
    dense: Knots
    """Matrix products, norms, activations and embeddings by tokens."""
    collective: Knots | None
    """All-reduces by tokens; None on a single GPU."""
    output_layer: Knots
    """The projection to the vocabulary by sequences."""
    attention: AttentionTerms
    provenance: Provenance


def read_shipped(name: str) -> CostFile:
    """The cost file that comes with the package; `LookupError` where there is none."""
    file = resources.files(__package__) / f"{name}.json"
    if not file.is_file():
        raise LookupError(f"no cost table is called {name!r}")
    return msgspec.json.decode(file.read_bytes(), type=CostFile)


def render(file: CostFile) -> str:
    """The file as JSON for people: one field a line, lists of numbers on one line."""
    pretty = msgspec.json.format(msgspec.json.encode(file), indent=2).decode()
    return _NUMBER_LIST.sub(lambda match: f"[{' '.join(match[1].split())}]", pretty) + "\n"


def write(file: CostFile, directory: Path) -> Path:
    """Write the file under its name and return where."""
    path = directory / f"{file.name}.json"
    path.write_text(render(file), encoding="utf-8")
    return path


@cache
def load_cost_table(name: str) -> CostTable:
    """The shipped cost table called `name`; `LookupError` where there is none."""
    return to_table(read_shipped(name))


def to_table(file: CostFile) -> CostTable:
    """The table that a cost file describes; `ValueError` where its numbers are not monotone."""
    tokens = _curve(file.dense)
    return CostTable(
        name=file.name,
        step_overhead_s=file.step_overhead_s,
        sequence_overhead_s=file.sequence_overhead_s,
        tokens=tokens if file.collective is None else tokens.plus(_curve(file.collective)),
        sequences=_curve(file.output_layer),
        attention=file.attention,
    )


def _curve(knots: Knots) -> Curve:
    return Curve(knots.at, knots.seconds)
