"""What output-length prediction is learned from, wherever it was recorded.

The rule of this module: a row holds what the gateway measured before the answer and how long the answer was; no text.
Rows of one group (a prompt, a conversation) are never on both sides of a split.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gateway.core.output_length.facts import PromptFacts
from gateway.core.output_length.features import MEASURED, measure, tenant_hash
from gateway.core.output_length.terms import term_buckets
from gateway.core.output_length.text import read_text

BUCKETS = 2**15
"""Of the table of terms: 128 KB of weights."""

BYTES_PER_TOKEN = 4.0
"""The gateway's ratio for a model that it knows nothing of yet."""

Floats = npt.NDArray[np.float64]
Indexes = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthRow:
    """One answered request."""

    measured: tuple[float, ...]
    """`features.MEASURED`."""
    terms: Indexes | None
    """Distinct buckets of the text's terms; None without text."""
    model: str
    tenant: int | None
    """Its hash."""
    output_tokens: int
    group: str


def estimated_tokens(text: str) -> float:
    """A prompt's tokens as the gateway estimates them before any calibration."""
    return len(text.encode("utf-8", "surrogatepass")) / BYTES_PER_TOKEN


def row_of(facts: PromptFacts, output_tokens: int, group: str, *, buckets: int = BUCKETS) -> LengthRow:
    """The row of a request whose text is still at hand."""
    read = read_text(facts.text)
    return LengthRow(
        measured=measure(facts, read),
        terms=term_buckets(read, buckets) if read.text else None,
        model=facts.model,
        tenant=None if facts.tenant is None else tenant_hash(facts.tenant),
        output_tokens=output_tokens,
        group=group,
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LengthRows:
    """Rows as columns; all of one length n."""

    measured: Floats
    """n x len(MEASURED)."""
    terms: tuple[Indexes | None, ...]
    models: npt.NDArray[np.str_]
    tenants: tuple[int | None, ...]
    tokens: Floats
    groups: npt.NDArray[np.str_]

    def __len__(self) -> int:
        return len(self.tokens)

    def take(self, chosen: npt.NDArray[np.bool_] | Indexes) -> "LengthRows":
        """The rows of a mask or of positions, in that order."""
        positions = np.flatnonzero(chosen) if chosen.dtype == bool else chosen
        return LengthRows(
            measured=self.measured[positions],
            terms=tuple(self.terms[at] for at in positions),
            models=self.models[positions],
            tenants=tuple(self.tenants[at] for at in positions),
            tokens=self.tokens[positions],
            groups=self.groups[positions],
        )


def columns(rows: Sequence[LengthRow]) -> LengthRows:
    """Rows as columns.

    Raises:
        ValueError: there are none, or one is not measured as this version measures.
    """
    if not rows:
        raise ValueError("no rows")
    if any(len(row.measured) != len(MEASURED) for row in rows):
        raise ValueError(f"every row must have the {len(MEASURED)} measured features")
    return LengthRows(
        measured=np.array([row.measured for row in rows], dtype=np.float64),
        terms=tuple(row.terms for row in rows),
        models=np.array([row.model for row in rows]),
        tenants=tuple(row.tenant for row in rows),
        tokens=np.array([row.output_tokens for row in rows], dtype=np.float64),
        groups=np.array([row.group for row in rows]),
    )


def joined(parts: Iterable[LengthRows]) -> LengthRows:
    """Several sets of rows as one."""
    every = list(parts)
    return LengthRows(
        measured=np.concatenate([part.measured for part in every]),
        terms=tuple(terms for part in every for terms in part.terms),
        models=np.concatenate([part.models for part in every]),
        tenants=tuple(tenant for part in every for tenant in part.tenants),
        tokens=np.concatenate([part.tokens for part in every]),
        groups=np.concatenate([part.groups for part in every]),
    )


def fold_of_each(groups: npt.NDArray[np.str_], folds: int, rng: np.random.Generator) -> Indexes:
    """A fold from 0 for each row, the same for a whole group; groups are dealt out at random."""
    names, group = np.unique(groups, return_inverse=True)
    dealt: Indexes = (rng.permutation(len(names)) % folds)[group]
    return dealt
