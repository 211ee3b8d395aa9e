"""Generators of requests without prefixes, fitted to Azure's traces.

The rule of this module: lengths and gaps are drawn independently; a trace is a pure function of (mix, how many, seed).
"""

from dataclasses import dataclass

import numpy as np

from loadtest.traces.quantiles import Knots, lengths
from loadtest.traces.types import TraceRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class RowMix:
    """Unrelated requests whose gaps are a mixture of exponential ones."""

    rate_rps: float
    """Mean arrival rate; met exactly."""
    gaps: tuple[tuple[float, float], ...]
    """(share of the gaps, their mean as a multiple of the mean gap)."""
    input_tokens: Knots
    output_tokens: Knots


AZURE_CONV = RowMix(
    rate_rps=5.53,
    gaps=((0.9, 0.898), (0.1, 1.92)),
    input_tokens=(
        (0.00, 2), (0.01, 29), (0.05, 181), (0.10, 207), (0.20, 387), (0.30, 403), (0.40, 703), (0.50, 1_020),
        (0.60, 1_071), (0.70, 1_130), (0.80, 1_315), (0.90, 2_735), (0.95, 4_083), (0.99, 4_142), (0.999, 6_179),
        (1.00, 14_050),
    ),
    output_tokens=(
        (0.00, 7), (0.01, 16), (0.05, 41), (0.10, 54), (0.20, 77), (0.30, 91), (0.40, 103), (0.50, 129), (0.60, 177),
        (0.70, 384), (0.80, 400), (0.90, 424), (0.95, 451), (0.99, 601), (0.999, 954), (1.00, 1_000),
    ),
)  # fmt: skip
"""Azure 2023 conversations: 19,366 requests, gap CV 1.09."""

AZURE_CODE = RowMix(
    rate_rps=2.57,
    # Bursts of a request every 0.1 s, pauses of seconds within them, and silences of a minute between them.
    gaps=((0.966, 0.29), (0.0303, 5.0), (0.0037, 154.0)),
    input_tokens=(
        (0.00, 3), (0.02, 35), (0.10, 120), (0.20, 300), (0.35, 850), (0.50, 1_469), (0.65, 2_130), (0.80, 3_350),
        (0.90, 5_194), (0.95, 6_600), (0.98, 7_400), (0.99, 7_436), (1.00, 7_437),
    ),
    output_tokens=(
        (0.00, 6), (0.10, 6), (0.25, 9), (0.50, 13), (0.75, 22), (0.90, 55), (0.95, 110), (0.99, 252), (1.00, 700),
    ),
)  # fmt: skip
"""Azure 2023 code completion: 8,819 requests, gap CV 13.2."""


def row_trace(mix: RowMix, requests: int, *, seed: int) -> list[TraceRequest]:
    """So many requests, at a mean rate of exactly `mix.rate_rps`."""
    if not requests:
        return []
    rng = np.random.default_rng(seed)
    shares, means = np.array(mix.gaps).T
    gaps = rng.exponential(means[rng.choice(len(means), requests, p=shares / shares.sum())])
    arrivals = np.cumsum(gaps)
    arrivals_s = arrivals * (requests / mix.rate_rps / arrivals[-1])
    prompts = lengths(mix.input_tokens, rng.random(requests))
    outputs = lengths(mix.output_tokens, rng.random(requests))
    return [
        TraceRequest(index=index, arrival_s=at_s, input_tokens=prompt, output_tokens=output)
        for index, (at_s, prompt, output) in enumerate(zip(arrivals_s.tolist(), prompts, outputs, strict=True))
    ]
