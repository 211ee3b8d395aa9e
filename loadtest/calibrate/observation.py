"""One measured time and the engine work that it is made of.

The rule of this module: whatever was measured, by a probe or by a gateway's log, becomes the same thing: some steps,
how often a request was taken in and with how many tokens, and KV that was moved. A cost table predicts its seconds.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gateway.core.step_cost import CostTable, StepWork
from loadtest.calibrate.plan import Kind, Probe
from loadtest.calibrate.target import Heard
from loadtest.engine.types import EngineSpec

SETTLE_TOKENS = 2
"""Tokens after the last stream's first one that a decode window leaves out."""
SEGMENT_TOKENS = 4
LEAST_SEGMENTS = 2
LEAST_GAP_S = 1e-4
"""No engine's steps follow one another faster: tokens that do were read together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """`seconds` went by for this work, one thing after the other."""

    kind: Kind
    steps: tuple[StepWork, ...]
    seconds: float
    intakes: int = 0
    """How often a request came in, by HTTP."""
    intake_tokens: int = 0
    """Prompt tokens that came in, summed over the intakes."""
    moved_tokens: int = 0
    """Prompt tokens whose KV was transferred, in one transfer."""
    awaited: tuple[StepWork, ...] = ()
    """Steps that others had under way when a leg came: on average half of one was left, and where the engine plans
    ahead the next one like it was planned."""


def predicted_seconds(spec: EngineSpec, table: CostTable, work: Observation) -> float:
    """What the engine would have taken."""
    steps_s = sum(map(table.step_seconds, work.steps))
    steps_s += (1.5 if spec.plans_ahead else 0.5) * sum(map(table.step_seconds, work.awaited))
    intake_s = work.intakes * spec.intake_s + work.intake_tokens * spec.intake_token_s
    if not work.moved_tokens:
        return intake_s + steps_s
    moved_s = spec.transfer_latency_s + work.moved_tokens * spec.kv_bytes_per_token / spec.transfer_bytes_per_s
    return intake_s + steps_s + moved_s


def prefill_steps(new_tokens: int, cached_tokens: int, budget_tokens: int) -> tuple[StepWork, ...]:
    """The steps of a prompt that has the engine to itself; with one token left to compute it decodes at once."""
    if new_tokens == 1:
        return (StepWork(decode_sequences=1, decode_context_tokens=cached_tokens + 1),)
    starts = range(0, new_tokens, budget_tokens)
    return tuple(
        StepWork(prefill=((min(budget_tokens, new_tokens - start), cached_tokens + start),)) for start in starts
    )


def prefill_observation(probe: Probe, heard: Heard, *, block_tokens: int, budget_tokens: int) -> Observation:
    """The first token of a prompt on an idle worker; where no cached tokens are told, whole blocks are assumed."""
    cached = heard.cached_tokens
    if cached is None:
        cached = min(probe.context_tokens, heard.prompt_tokens - 1) // block_tokens * block_tokens
    return Observation(
        kind=Kind.PREFILL,
        steps=prefill_steps(heard.prompt_tokens - cached, cached, budget_tokens),
        seconds=heard.ttft_s,
        intakes=1,
        intake_tokens=heard.prompt_tokens,
    )


def transfer_observation(heard: Heard) -> Observation:
    """The first token of a decode leg on an idle worker: intake, the KV's arrival, and a step."""
    prompt = heard.prompt_tokens
    return Observation(
        kind=Kind.TRANSFER,
        steps=(StepWork(decode_sequences=1, decode_context_tokens=prompt),),
        seconds=heard.ttft_s,
        intakes=1,
        intake_tokens=prompt,
        moved_tokens=prompt,
    )


def decode_observation(streams: Sequence[Heard]) -> Observation | None:
    """One step of streams that decode together; None where they hardly did.

    Only the time counts in which all of them decode. A stream's tokens there are cut into short segments, and the
    median over the segments of all streams is the step: reads that bring two tokens at once do not hurt it, and
    neither does a pause. Where most tokens came with the one before them, segments tell nothing, and the mean is taken
    from when the last stream's first token came.
    """
    begin_s = max(heard.token_s[0] for heard in streams)
    end_s = min(heard.token_s[-1] for heard in streams)
    steps_s: list[float] = []
    gaps_s: list[float] = []
    means_s: list[float] = []
    context = 0.0
    for heard in streams:
        times = np.array(heard.token_s)
        inside = np.flatnonzero((times > begin_s) & (times <= end_s))[SETTLE_TOKENS:]
        segments = (len(inside) - 1) // SEGMENT_TOKENS
        if segments < LEAST_SEGMENTS:
            return None
        kept = inside[: segments * SEGMENT_TOKENS + 1]
        gaps_s += list(np.diff(times[kept]))
        together = times[(times >= begin_s) & (times <= end_s)]
        means_s.append(float(together[-1] - begin_s) / (len(together) - 1))
        steps_s += list(np.diff(times[kept[::SEGMENT_TOKENS]]) / SEGMENT_TOKENS)
        # The step that makes token j reads the prompt and the j tokens before it.
        context += heard.prompt_tokens + float(kept[1:].mean())
    work = StepWork(decode_sequences=len(streams), decode_context_tokens=round(context))
    coalesced = np.count_nonzero(np.array(gaps_s) > LEAST_GAP_S) < len(gaps_s) / 2
    seconds = float(np.mean(means_s) if coalesced else np.median(steps_s))
    return Observation(kind=Kind.DECODE, steps=(work,), seconds=seconds)


def median_observation(repeats: Sequence[Observation]) -> Observation:
    """The repeat in the middle by its seconds: its work and its time belong together."""
    return sorted(repeats, key=lambda repeat: repeat.seconds)[(len(repeats) - 1) // 2]
