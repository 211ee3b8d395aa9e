"""A generator fitted to Mooncake's tool and agent trace (FAST'25: 23,608 requests).

The rule of this module: two streams, conversations and calls of tools. A tool's prompt is the same blocks every time,
with something new behind them; one tool makes most calls, which is why a small cache wins most of what there is.
Fitted to the mean lengths (8,590 and 182 tokens) and to the hit ratio by cache size; the rate is that of an hour.
"""

from dataclasses import dataclass, field, replace

import numpy as np

from loadtest.traces.quantiles import Knots, lengths
from loadtest.traces.synthetic import SyntheticMix, synthetic_trace
from loadtest.traces.types import MOONCAKE_BLOCK_TOKENS, TraceRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolMix:
    """Calls of tools among conversations."""

    rate_rps: float = 6.56
    tools: tuple[tuple[float, int], ...] = ((0.44, 12), (0.09, 5), (0.02, 12), (0.01, 8), (0.01, 16))
    """(share of all requests, blocks of the fixed prompt) of each tool; the rest are conversations."""
    tail_tokens: Knots = (
        (0.00, 10), (0.25, 80), (0.50, 200), (0.75, 500), (0.90, 1_500), (0.99, 6_000), (1.00, 20_000),
    )  # fmt: skip
    """What a call puts after the fixed prompt."""
    output_tokens: Knots = ((0.00, 3), (0.25, 10), (0.50, 20), (0.75, 40), (0.90, 110), (0.99, 500), (1.00, 1_000))
    chat: SyntheticMix = field(default_factory=SyntheticMix)
    """The conversations; their rate is what the tools leave."""


def tool_trace(mix: ToolMix, requests: int, *, seed: int) -> list[TraceRequest]:
    """So many requests in order of arrival, at a mean rate of exactly `mix.rate_rps`."""
    rng = np.random.default_rng((seed, 1))
    called = sum(share for share, _ in mix.tools)
    calls = int(rng.binomial(requests, called))
    chat = replace(mix.chat, rate_rps=mix.rate_rps * (1.0 - called))
    chats = synthetic_trace(chat, requests - calls, seed=seed)
    first_id = 1 + max((max(one.hash_ids) for one in chats), default=0)
    span_s = requests / mix.rate_rps
    merged = sorted([*chats, *_tool_calls(mix, calls, span_s, first_id, rng)], key=lambda one: one.arrival_s)
    stretch = span_s / merged[-1].arrival_s if merged else 1.0
    return [replace(one, index=index, arrival_s=one.arrival_s * stretch) for index, one in enumerate(merged)]


def _tool_calls(mix: ToolMix, calls: int, span_s: float, first_id: int, rng: np.random.Generator) -> list[TraceRequest]:
    weights = np.array([share for share, _ in mix.tools])
    prompts: list[tuple[int, ...]] = []
    next_id = first_id
    for _, size in mix.tools:
        prompts.append(tuple(range(next_id, next_id + size)))
        next_id += size
    found = []
    for at_s, tool, tail, output in zip(
        np.sort(rng.uniform(0.0, span_s, calls)).tolist(),
        rng.choice(len(weights), calls, p=weights / weights.sum()).tolist(),
        lengths(mix.tail_tokens, rng.random(calls)),
        lengths(mix.output_tokens, rng.random(calls)),
        strict=True,
    ):
        own = -(-tail // MOONCAKE_BLOCK_TOKENS)
        found.append(
            TraceRequest(
                index=-1,
                arrival_s=at_s,
                input_tokens=len(prompts[tool]) * MOONCAKE_BLOCK_TOKENS + tail,
                output_tokens=output,
                hash_ids=(*prompts[tool], *range(next_id, next_id + own)),
            )
        )
        next_id += own
    return found
