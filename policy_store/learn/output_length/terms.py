"""Fits the text score: ridge regression of the standardised log length on hashed terms and the layout.

The rule of this module: the score of a row that is trained on comes from weights that did not see its group; otherwise
the trees would trust it more than it deserves.
"""

from collections import Counter
from dataclasses import replace

import numpy as np
from scipy.sparse import csr_matrix, hstack
from sklearn.linear_model import Ridge

from gateway.core.output_length.terms import LAYOUT, MAX_SCORE, TextScore
from policy_store.learn.output_length.rows import BUCKETS, Floats, Indexes, LengthRows

TOLERANCE = 1e-4
MIN_ENTRY = 0.1
"""Of a term that nearly every prompt has."""
MIN_ROWS = 50
"""With text. Fewer teach nothing about words."""
LAYOUT_SHARE = 0.15
"""Squared length of the layout's part of a text's vector, on average; the terms' is 1."""


def with_text(rows: LengthRows) -> Indexes:
    """Positions of the rows that have terms."""
    return np.flatnonzero([terms is not None for terms in rows.terms])


def fit_text(rows: LengthRows, lengths: Floats, *, penalty: float, terms: bool = True) -> TextScore | None:
    """The score learned from the rows with text; None where those are too few.

    Without `terms` only the layout counts.
    """
    chosen = with_text(rows)
    if len(chosen) < MIN_ROWS:
        return None
    # A prompt that several models answered counts once in all.
    weight = 1.0 / _repeats(rows)[chosen]
    present = _present(rows, chosen)
    entries = 1.0 + np.log(weight.sum() / (1.0 + present.T @ weight))
    squares = np.maximum(MIN_ENTRY, entries) ** 2
    vectors = present.multiply(np.sqrt(squares)).tocsr()
    vectors = vectors.multiply(float(terms) / np.sqrt(np.maximum(MIN_ENTRY, present @ squares))[:, None])
    layout = np.log1p(rows.measured[chosen, : len(LAYOUT)])
    center, scale = layout.mean(axis=0), layout.std(axis=0)
    stretch = np.where(scale > 0.0, np.sqrt(LAYOUT_SHARE / len(LAYOUT)) / np.maximum(scale, 1e-9), 0.0)
    ridge = Ridge(alpha=penalty, solver="sparse_cg", tol=TOLERANCE)
    ridge.fit(hstack((vectors, csr_matrix((layout - center) * stretch)), format="csr"), lengths[chosen], weight)
    of_layout = ridge.coef_[BUCKETS:] * stretch
    return TextScore(
        weights=(ridge.coef_[:BUCKETS] * np.sqrt(squares)).astype(np.float32),
        squares=squares.astype(np.float32),
        layout=tuple(of_layout.tolist()),
        intercept=float(ridge.intercept_ - center @ of_layout),
        trust=1.0,
    )


def trusted(text: TextScore, unseen: Floats, lengths: Floats) -> TextScore:
    """The score drawn towards the mean length as far as scores of unseen rows (NaN where they have none) ask for."""
    has = ~np.isnan(unseen)
    score, length = unseen[has], lengths[has]
    variance = float(score.var())
    slope = float(((score - score.mean()) * (length - length.mean())).mean()) / variance if variance > 0.0 else 0.0
    trust = min(1.0, max(0.0, slope))
    # What the intercept and the layout's centre add up to for a row of average score stays the mean length.
    return replace(text, trust=trust, intercept=float(length.mean()) - trust * (float(score.mean()) - text.intercept))


def retrusted(unseen: Floats, text: TextScore, raw: TextScore) -> Floats:
    """Scores of unseen rows as the trusted score would have given them."""
    again = text.intercept + text.trust * (unseen - raw.intercept)
    return np.clip(again, -MAX_SCORE, MAX_SCORE)


def scores(text: TextScore | None, rows: LengthRows) -> Floats:
    """The score of every row; NaN where there is no text, or nothing was learned."""
    values = np.full(len(rows), np.nan)
    if text is not None:
        for at in with_text(rows):
            buckets = rows.terms[at]
            assert buckets is not None
            values[at] = text.of(buckets, tuple(rows.measured[at, : len(LAYOUT)].tolist()))
    return values


def _repeats(rows: LengthRows) -> Floats:
    """How many rows have the same text, by group and terms."""
    texts = (b"" if terms is None else terms.tobytes() for terms in rows.terms)
    keys = list(zip(map(str, rows.groups), texts, strict=True))
    counts = Counter(keys)
    return np.array([float(counts[key]) for key in keys])


def _present(rows: LengthRows, chosen: Indexes) -> csr_matrix:
    """Rows x buckets: 1 where a term occurs."""
    present = [terms for at in chosen if (terms := rows.terms[at]) is not None]
    starts = np.cumsum([0, *map(len, present)])
    found = np.concatenate(present)
    return csr_matrix((np.ones(len(found)), found, starts), shape=(len(present), BUCKETS))
