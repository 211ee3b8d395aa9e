"""What a worker's GPUs draw, what that adds up to, and how much slower they are under a power cap.

The rule of this module: it is a model. Whatever is made of its numbers is called modelled, never measured. It counts
the GPUs' boards alone: no host, no network card, no cooling.

A step that only decodes draws `decode_w`. One with prompt chunks draws

    decode_w + (prefill_w - decode_w) * share        share = the time that the chunks add / the step's time

so that its energy is `decode_w` for the time that the step would have taken without them and `prefill_w` for the rest.
Decoding reads weights and KV while most arithmetic units wait; what chunks add to a step is arithmetic, which takes all
power that there is (Splitwise, arXiv:2311.18677: prompts use the GPU's power budget, token generation does not). A step
reads the weights whatever it computes, so one with chunks alone counts as the step of a single token and what is added
to that: short chunks draw little more than decoding does.

Where the numbers come from; [D] marks an assumption:

- `tdp_w`: NVIDIA's data sheets of the SXM boards.
- `idle_w`: 60, 70 and 75 W of an A100, H100 and H200 that nobody uses [D], and `CONTEXT_W`: a worker that is ready has
  its model loaded. The CUDA context adds 26 to 50 W on an A100 or H100, whatever the memory holds (arXiv:2605.23918);
  the middle of that, for all three [D].
- `prefill_w`: the TDP [D].
- `decode_w`: 57 to 59 % of the TDP [D]. It differs widely with model and batch: 137 to 300 W of an H200's 700 W in
  arXiv:2605.11999, which would make decoding cheaper than here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import accumulate
from types import MappingProxyType

from gateway.core.step_cost import CostTable, Curve, StepWork
from loadtest.engine.stretch import CostModel

CONTEXT_W = 40.0
CLOCK_EXPONENT = 2.5
"""Power above idle grows with this power of the clock [D]: voltage rises with the clock, which alone would make it 3,
but not over the whole range, and what the memory draws does not grow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """An engine's time so far, by what it did; the three add up to all of it."""

    idle_s: float
    decode_s: float
    """Steps without what prompt chunks added to them."""
    prefill_s: float
    """What prompt chunks added."""

    @property
    def busy_s(self) -> float:
        """All steps."""
        return self.decode_s + self.prefill_s


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerModel:
    """What a GPU, or a group of them that is one worker, draws; in watts.

    Raises:
        ValueError: these do not rise from idle to decoding, prefill and the TDP.
    """

    idle_w: float
    decode_w: float
    prefill_w: float
    tdp_w: float
    """What caps are shares of; that of the board, capped or not."""

    def __post_init__(self) -> None:
        if not 0 <= self.idle_w <= self.decode_w <= self.prefill_w <= self.tdp_w:
            raise ValueError("power must not be negative, and must rise from idle to decode, prefill and the TDP")

    def group(self, gpus: int) -> "PowerModel":
        """So many of these together."""
        return PowerModel(
            idle_w=self.idle_w * gpus,
            decode_w=self.decode_w * gpus,
            prefill_w=self.prefill_w * gpus,
            tdp_w=self.tdp_w * gpus,
        )

    def step_w(self, prefill_share: float) -> float:
        """What a step draws of whose time prompt chunks take this share, from 0 to 1."""
        return self.decode_w + (self.prefill_w - self.decode_w) * prefill_share

    def energy_j(self, usage: Usage) -> float:
        """What all that took."""
        return self.idle_w * usage.idle_s + self.decode_w * usage.decode_s + self.prefill_w * usage.prefill_s

    def slowdown(self, draw_w: float, cap_w: float) -> float:
        """How many times longer work takes that would draw `draw_w`, where no more than `cap_w` may be drawn.

        The clock falls until the power above idle fits: by `CLOCK_EXPONENT`. That is right for arithmetic; reading
        memory slows less, so a cap below `decode_w` is made out to cost more than it does.
        """
        if draw_w <= cap_w:
            return 1.0
        return float(((draw_w - self.idle_w) / (cap_w - self.idle_w)) ** (1 / CLOCK_EXPONENT))


GPU_POWER: Mapping[str, PowerModel] = MappingProxyType(
    {
        "a100": PowerModel(idle_w=60.0 + CONTEXT_W, decode_w=230.0, prefill_w=400.0, tdp_w=400.0),
        "h100": PowerModel(idle_w=70.0 + CONTEXT_W, decode_w=400.0, prefill_w=700.0, tdp_w=700.0),
        "h200": PowerModel(idle_w=75.0 + CONTEXT_W, decode_w=410.0, prefill_w=700.0, tdp_w=700.0),
    }
)
"""One GPU, by its `System`'s name."""


class PrefillMeter:
    """Tells what prompt chunks add to steps; it prices no step that has none."""

    __slots__ = ("_costs", "_token_s")

    def __init__(self, costs: CostModel) -> None:
        self._costs = costs
        self._token_s = costs.step_seconds(StepWork(decode_sequences=1))

    def added_s(self, step_s: float, decodes: int, decode_context_tokens: int) -> float:
        """Of a step with chunks that takes `step_s` and in which so many sequences decode: from 0 to `step_s`."""
        rest_s = self._token_s
        if decodes:
            rest_s = self._costs.step_seconds(
                StepWork(decode_sequences=decodes, decode_context_tokens=decode_context_tokens)
            )
        return max(0.0, step_s - rest_s)


def capped(costs: CostTable, power: PowerModel, cap_ratio: float) -> tuple[CostTable, PowerModel]:
    """Prices and power of the same worker, where its GPUs may draw no more than `cap_ratio` of their TDP.

    Prompt attention takes longer by the slowdown of what draws `prefill_w`; decode attention and the output layer by
    that of what draws `decode_w`, which is none until the cap is below it. Dense layers do arithmetic and read weights
    at once, and whichever takes longer counts. The host's work and kernel launches stay as they are.

    That agrees with Splitwise (arXiv:2311.18677), which slows prompts by capping but hardly decoding, and runs
    its capped machines for decoding at half of the GPUs' power; for whole requests, with LLaMA on A100s capped at 175
    instead of 250 W, arXiv:2310.03003 has 6 to 7 % more time for 23 % less energy.

    Raises:
        ValueError: the cap is no more than the idle power, or above the TDP.
    """
    cap_w = cap_ratio * power.tdp_w
    if not power.idle_w < cap_w <= power.tdp_w:
        raise ValueError(f"a cap lies between the idle power and the TDP, not at {cap_w:g} W")
    prefill = power.slowdown(power.prefill_w, cap_w)
    decode = power.slowdown(power.decode_w, cap_w)
    attention = costs.attention
    table = replace(
        costs,
        tokens=_slowed_dense(costs.tokens, prefill, decode),
        sequences=Curve(costs.sequences.xs, tuple(seconds * decode for seconds in costs.sequences.ys)),
        attention=replace(
            attention,
            prefill_sequence_s=attention.prefill_sequence_s * prefill,
            prefill_token_s=attention.prefill_token_s * prefill,
            prefill_pair_s=attention.prefill_pair_s * prefill,
            decode_sequence_s=attention.decode_sequence_s * decode,
            kv_token_s=attention.kv_token_s * decode,
        ),
    )
    return table, replace(power, decode_w=min(power.decode_w, cap_w), prefill_w=min(power.prefill_w, cap_w))


def _slowed_dense(curve: Curve, prefill: float, decode: float) -> Curve:
    """Dense layers of which arithmetic and reading are slowed apart.

    Arithmetic takes the time per token of the largest step that was measured; where that is less than the whole, the
    rest of the time it waits for memory.
    """
    token_s = curve.ys[-1] / curve.xs[-1]
    shares = (
        min(1.0, token_s * x / seconds) if seconds else 0.0 for x, seconds in zip(curve.xs, curve.ys, strict=True)
    )
    # Larger steps never wait more for memory; where they seem to, kernels were less than perfect.
    grown = accumulate(shares, max)
    ys = tuple(max(seconds * decode, seconds * share * prefill) for seconds, share in zip(curve.ys, grown, strict=True))
    return Curve(curve.xs, ys)
