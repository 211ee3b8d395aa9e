"""Generators whose traces have the statistics of public ones.

The rule of this module: every number of a distribution stands in a frozen mix, and a trace is a pure function
of (mix, how many, seed). The defaults are fitted to the Mooncake conversation trace (FAST'25 release: 12,031
requests in 3,537 s), including how it starts: no history at first, then ever more conversations that go on.
"""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count, islice

import numpy as np

from loadtest.traces.quantiles import Knots, value
from loadtest.traces.types import MOONCAKE_BLOCK_TOKENS, TraceRequest

HEAD_BLOCK = 0
"""The block id with which every prompt of the Mooncake conversation trace begins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyntheticMix:
    """A mix of conversations: how often they begin, how they grow and how soon they go on.

    After each turn a conversation goes on with its own probability, drawn when it begins from
    Beta(`turn_alpha`, `turn_beta`). A turn appends to the history (the former prompt, its answer, a new
    message) or, in the `trim_ratio` of turns whose history is long, keeps only a leading share of it and
    replaces the rest.
    """

    rate_rps: float = 3.40
    """Mean arrival rate of the whole trace, all turns counted; met exactly."""
    isl_scale: float = 1.0
    """Multiplies the lengths of prompts and messages; the shared head and the blocks keep their size."""
    osl_scale: float = 1.0
    gap_scale: float = 1.0
    """Multiplies the time between turns: below 1, short runs see more continuations."""
    max_input_tokens: int = 126_195
    """No prompt is longer: a conversation that would be, ends."""
    first_ratio: float = 0.613
    """Share of requests that begin a conversation, from which their rate follows."""
    turn_alpha: float = 3.0
    turn_beta: float = 4.5
    one_off_tokens: int = 1_024
    """First prompts below this length (before scaling) have no second turn."""
    trim_ratio: float = 0.33
    trim_above_tokens: int = 8_192
    """Length (before scaling) from which a history may be trimmed."""
    first_tokens: Knots = (
        (0.00, 891), (0.05, 897), (0.10, 905), (0.20, 1_092), (0.30, 1_757), (0.40, 3_913), (0.50, 5_264),
        (0.60, 7_418), (0.70, 10_771), (0.80, 15_871), (0.90, 25_559), (0.95, 38_494), (0.99, 89_868),
        (1.00, 126_195),
    )  # fmt: skip
    """Prompt length of a first turn."""
    message_tokens: Knots = (
        (0.00, 4), (0.10, 6), (0.25, 10), (0.50, 26), (0.60, 52), (0.70, 172), (0.75, 355), (0.80, 694),
        (0.90, 4_194), (0.95, 6_921), (0.99, 16_705), (1.00, 91_467),
    )  # fmt: skip
    """What a later turn adds to the history."""
    trim_kept_ratio: Knots = (
        (0.00, 0.04), (0.10, 0.07), (0.25, 0.11), (0.50, 0.21), (0.75, 0.45), (0.90, 0.83), (1.00, 1.00),
    )  # fmt: skip
    """Leading share of the history's blocks that a trimmed turn keeps."""
    trim_new_tokens: Knots = (
        (0.00, 300), (0.05, 896), (0.25, 5_790), (0.50, 9_567), (0.75, 14_831), (0.95, 26_341),
        (1.00, 60_000),
    )  # fmt: skip
    """What a trimmed turn puts after the kept part."""
    output_tokens: Knots = (
        (0.00, 1), (0.01, 3), (0.05, 10), (0.10, 24), (0.15, 46), (0.20, 100), (0.25, 156), (0.30, 213),
        (0.40, 291), (0.50, 350), (0.60, 399), (0.75, 472), (0.90, 597), (0.95, 698), (0.99, 1_119),
        (0.995, 1_568), (1.00, 2_000),
    )  # fmt: skip
    gap_s: Knots = (
        (0.00, 1), (0.01, 12), (0.05, 30), (0.10, 42), (0.25, 66), (0.50, 123), (0.75, 264), (0.90, 483),
        (0.95, 615), (0.99, 1_477), (1.00, 3_030),
    )  # fmt: skip
    """Time from the arrival of one turn to that of the next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Conversation:
    """A conversation after its last turn, and the probability that it has another."""

    name: str
    go_on: float
    blocks: tuple[int, ...]
    input_tokens: int
    output_tokens: int


class _Chance:
    """Draws from one generator; every draw of a trace happens here, in order."""

    def __init__(self, mix: SyntheticMix, seed: int) -> None:
        self.mix = mix
        self.rng = np.random.default_rng(seed)
        self._fresh_blocks = count(HEAD_BLOCK + 1)

    def value(self, knots: Knots) -> float:
        """A value of the distribution."""
        return value(knots, self.rng.random())

    def input_tokens(self, knots: Knots) -> int:
        return max(1, round(self.value(knots) * self.mix.isl_scale))

    def output_tokens(self) -> int:
        return max(1, round(self.value(self.mix.output_tokens) * self.mix.osl_scale))

    def blocks(self, kept: tuple[int, ...], input_tokens: int) -> tuple[int, ...]:
        """`kept`, then as many new block ids as the prompt needs."""
        missing = -(-input_tokens // MOONCAKE_BLOCK_TOKENS) - len(kept)
        return kept + tuple(islice(self._fresh_blocks, max(0, missing)))


def _begin(chance: _Chance, name: str) -> _Conversation:
    mix = chance.mix
    tokens = min(chance.input_tokens(mix.first_tokens), mix.max_input_tokens)
    one_off = tokens < mix.one_off_tokens * mix.isl_scale
    return _Conversation(
        name=name,
        go_on=0.0 if one_off else chance.rng.beta(mix.turn_alpha, mix.turn_beta),
        blocks=chance.blocks((HEAD_BLOCK,), tokens),
        input_tokens=tokens,
        output_tokens=chance.output_tokens(),
    )


def _go_on(chance: _Chance, last: _Conversation) -> _Conversation:
    mix = chance.mix
    whole_blocks = last.input_tokens // MOONCAKE_BLOCK_TOKENS
    may_trim = last.input_tokens >= mix.trim_above_tokens * mix.isl_scale
    if may_trim and chance.rng.random() < mix.trim_ratio:
        share = chance.value(mix.trim_kept_ratio)
        kept = min(whole_blocks, max(2, int(share * len(last.blocks))))
        tokens = kept * MOONCAKE_BLOCK_TOKENS + chance.input_tokens(mix.trim_new_tokens)
    else:
        kept = whole_blocks
        tokens = last.input_tokens + last.output_tokens + chance.input_tokens(mix.message_tokens)
    return replace(
        last,
        blocks=chance.blocks(last.blocks[:kept], tokens),
        input_tokens=tokens,
        output_tokens=chance.output_tokens(),
    )


def _turns(chance: _Chance) -> Iterator[tuple[float, _Conversation]]:
    """All turns of all conversations in order of arrival, without end."""
    mix = chance.mix
    first_gap_s = 1.0 / (mix.rate_rps * mix.first_ratio)
    waiting: list[tuple[float, int, _Conversation | None]] = [(chance.rng.exponential(first_gap_s), 0, None)]
    tie_breaks = count(1)
    while True:
        at_s, order, last = heapq.heappop(waiting)
        if last is None:
            turn = _begin(chance, f"c{order}")
            next_s = at_s + chance.rng.exponential(first_gap_s)
            heapq.heappush(waiting, (next_s, next(tie_breaks), None))
        else:
            turn = _go_on(chance, last)
        if turn.input_tokens > mix.max_input_tokens:
            continue
        yield at_s, turn
        if chance.rng.random() < turn.go_on:
            next_s = at_s + chance.value(mix.gap_s) * mix.gap_scale
            heapq.heappush(waiting, (next_s, next(tie_breaks), turn))


def synthetic_trace(mix: SyntheticMix, requests: int, *, seed: int) -> list[TraceRequest]:
    """The first `requests` turns of a mix, at a mean rate of exactly `mix.rate_rps`."""
    turns = list(islice(_turns(_Chance(mix, seed)), requests))
    if not turns:
        return []
    stretch = requests / mix.rate_rps / turns[-1][0]
    return [
        TraceRequest(
            index=index,
            arrival_s=at_s * stretch,
            input_tokens=turn.input_tokens,
            output_tokens=turn.output_tokens,
            hash_ids=turn.blocks,
            session=turn.name,
        )
        for index, (at_s, turn) in enumerate(turns)
    ]


def uniform_mix(
    requests: int, *, isl_tokens: float, osl_tokens: int, rate_rps: float, seed: int, isl_sigma: float = 0.15
) -> list[TraceRequest]:
    """Unrelated requests of similar size: Poisson arrivals and log-normal prompt lengths.

    `isl_tokens` is the median prompt length and `isl_sigma` the standard deviation of its logarithm.
    """
    rng = np.random.default_rng(seed)
    arrivals_s = np.cumsum(rng.exponential(1.0 / rate_rps, requests))
    lengths = np.maximum(1, np.rint(isl_tokens * np.exp(rng.normal(0.0, isl_sigma, requests)))).astype(int)
    return [
        TraceRequest(index=index, arrival_s=at_s, input_tokens=length, output_tokens=osl_tokens)
        for index, (at_s, length) in enumerate(zip(arrivals_s.tolist(), lengths.tolist(), strict=True))
    ]
