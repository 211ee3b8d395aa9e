"""Prices of engine work, in seconds.

A step costs a fixed overhead, plus the dense layers by its tokens, the output layer by its sequences, and attention
by what every query token reads. The rule of this module: nothing here knows why a step holds the work that it holds.
"""

from bisect import bisect_right
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import NamedTuple


class StepWork(NamedTuple):
    """What one engine step computes."""

    prefill: tuple[tuple[int, int], ...] = ()
    """One pair per prompt chunk: its new tokens, and the tokens of the same sequence whose KV is already there."""
    decode_sequences: int = 0
    """Sequences that add one token."""
    decode_context_tokens: int = 0
    """Tokens that those sequences attend to, summed."""

    @property
    def sequences(self) -> int:
        """Sequences with work in this step: each has one row of logits."""
        return len(self.prefill) + self.decode_sequences


@dataclass(frozen=True, slots=True)
class Curve:
    """A piecewise-linear, never falling function through its knots.

    Below the first knot it is flat; beyond the last it goes on with the last slope.
    """

    xs: tuple[int, ...]
    ys: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.xs) != len(self.ys) or len(self.xs) < 2:
            raise ValueError("a curve needs at least two knots, each with one value")
        if any(b <= a for a, b in pairwise(self.xs)):
            raise ValueError("knots must rise")
        if self.ys[0] < 0 or any(b < a for a, b in pairwise(self.ys)):
            raise ValueError("values must not be negative and must not fall")

    def at(self, x: int) -> float:
        """The curve's value at `x`."""
        xs, ys = self.xs, self.ys
        if x <= xs[0]:
            return ys[0]
        right = bisect_right(xs, x, 1, len(xs) - 1)
        left = right - 1
        return ys[left] + (ys[right] - ys[left]) * (x - xs[left]) / (xs[right] - xs[left])

    def plus(self, other: "Curve") -> "Curve":
        """The sum of two curves, exact at and between all knots of both."""
        xs = tuple(sorted({*self.xs, *other.xs}))
        return Curve(xs, tuple(self.at(x) + other.at(x) for x in xs))


class AffineStretch(NamedTuple):
    """Steps of which each takes the same time longer than the one before, as its sequences grow."""

    first_s: float
    growth_s: float

    def seconds(self, steps: int) -> float:
        """How long the first `steps` steps take together."""
        return steps * (self.first_s + self.growth_s * (steps - 1) / 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionTerms:
    """Seconds that the attention kernels of all layers take, by what they do."""

    launch_s: float
    """Once per step."""
    prefill_sequence_s: float
    """Per prompt chunk."""
    prefill_token_s: float
    """Per new token of a chunk."""
    prefill_pair_s: float
    """Per pair of a new token and a token that it attends to, cached ones included."""
    decode_sequence_s: float
    """Per sequence that adds one token."""
    kv_token_s: float
    """Per cached token read once: a decode's context, a chunk's prefix."""

    def __post_init__(self) -> None:
        for one in fields(self):
            if not getattr(self, one.name) >= 0:
                raise ValueError(f"{one.name} must be at least 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class CostTable:
    """What one engine's steps cost; monotone in every quantity of the work."""

    name: str
    step_overhead_s: float
    sequence_overhead_s: float = 0.0
    tokens: Curve
    """All dense layers, element-wise operations and collectives, by the step's tokens."""
    sequences: Curve
    """The output layer, by the step's sequences."""
    attention: AttentionTerms

    def decode_stretch(self, sequences: int, context_tokens: int) -> "AffineStretch":
        """Consecutive pure decode steps of the same sequences, of which the first reads `context_tokens`."""
        work = StepWork(decode_sequences=sequences, decode_context_tokens=context_tokens)
        return AffineStretch(self.step_seconds(work), self.attention.kv_token_s * sequences)

    def step_seconds(self, work: StepWork) -> float:
        """How long a step with this work takes; the work must not be empty."""
        prefill, decodes, context_tokens = work
        new_tokens = read_tokens = 0
        pairs = 0.0
        for new, before in prefill:
            new_tokens += new
            read_tokens += before
            pairs += new * (before + (new + 1) / 2)
        cost, chunks = self.attention, len(prefill)
        sequences = chunks + decodes
        return (
            self.step_overhead_s
            + self.sequence_overhead_s * sequences
            + self.tokens.at(new_tokens + decodes)
            + self.sequences.at(sequences)
            + cost.launch_s
            + cost.prefill_sequence_s * chunks
            + cost.prefill_token_s * new_tokens
            + cost.prefill_pair_s * pairs
            + cost.decode_sequence_s * decodes
            + cost.kv_token_s * (read_tokens + context_tokens)
        )
