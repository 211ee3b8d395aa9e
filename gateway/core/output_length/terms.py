"""A linear score of a prompt: hashed terms, and how the text is laid out [D].

A term is a word, or two words in a row; each falls into a bucket of a fixed table. The score is a dot product of
learned weights with the text's vector, an entry per bucket that occurs, the rarer the larger, of length one in all,
plus one with the logarithms of the paper's features and of the layout.

The rule of this module: no word is stored, and a bucket follows from words alone, the same in every process.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gateway.core.output_length.prompt_features import PROMPT_FEATURES
from gateway.core.output_length.shape import SHAPE_FEATURES
from gateway.core.output_length.text import Reading

LAYOUT = (*PROMPT_FEATURES, *SHAPE_FEATURES)
"""Features that the score uses besides terms; log1p of each, for they are counts and ratios."""
_PAIR = np.uint32(2_654_435_761)
_MIX = np.uint32(15)
_HALF = np.uint64(32)
MAX_SCORE = 2.5
"""In spreads: a text unlike any that was learned from must not run away."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class TextScore:
    """Learned figures of a score of standardised log length; `weights` and `squares` have one per bucket."""

    weights: npt.NDArray[np.float32]
    """By what an entry counts, times the entry before scaling."""
    squares: npt.NDArray[np.float32]
    """The square of the entry before scaling; above zero."""
    layout: tuple[float, ...]
    """A weight for each of `LAYOUT`."""
    intercept: float
    trust: float
    """By what the sum counts: 1 where it says as much of new texts as of old ones, 0 where it says nothing of them."""

    def of(self, buckets: npt.NDArray[np.intp], layout: tuple[float, ...]) -> float:
        """The score of a text's distinct buckets and of its features of `LAYOUT`, each finite and not negative."""
        score = 0.0
        for weight, value in zip(self.layout, layout, strict=True):
            if value:
                score += weight * math.log1p(value)
        if buckets.size:
            score += float(self.weights[buckets].sum()) / math.sqrt(float(self.squares[buckets].sum()))
        return max(-MAX_SCORE, min(MAX_SCORE, self.intercept + self.trust * score))


def term_buckets(read: Reading, buckets: int) -> npt.NDArray[np.intp]:
    """The distinct buckets of the text's terms, ascending; `buckets` is a power of two."""
    words = (read.words >> _HALF).astype(np.uint32)
    terms = np.concatenate((words, words[:-1] * _PAIR + words[1:]))
    terms ^= terms >> _MIX
    terms &= np.uint32(buckets - 1)
    terms.sort()
    first = np.ones(len(terms), dtype=bool)
    np.not_equal(terms[1:], terms[:-1], out=first[1:])
    return terms[first].astype(np.intp)
