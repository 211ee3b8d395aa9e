"""What to probe, within a budget of requests.

The rule of this module: arithmetic only. The densest plan that the budget pays for is taken; a round visits every
point once, so that what drifts over time reaches all of them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from loadtest.calibrate.limits import CalibrationError, Limits

WINDOW_TOKENS = 32
"""Tokens of each stream that a decode probe listens to while all its streams decode."""
LEAST_PREFILL_TOKENS = 16
LEAST_PREFIX_TOKENS = 256
NEW_TOKENS = (1, 64, 512, 2048)
"""What prompts add to a cached prefix."""
CONTEXTS = (256, 1024, 4096)
"""Prompt lengths of decode probes; all batches are probed at the first."""
LENGTH_SHARE = 0.9
"""Prompts stay this far below the longest, for their length in a real tokenizer's tokens is known only roughly."""
CACHE_SHARE = 0.8
"""Streams of one probe fill no more of the KV cache: none may be preempted."""
WARM_UP_STREAMS = 4


class Kind(StrEnum):
    """What a probe measures."""

    PREFILL = "prefill"
    DECODE = "decode"
    TRANSFER = "transfer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One point of the grid."""

    kind: Kind
    size: int
    """New prompt tokens of a prefill, streams of a decode batch, prompt tokens of a transfer."""
    context_tokens: int = 0
    """Cached prompt tokens of a prefill, prompt tokens of each decoding stream."""

    @property
    def requests(self) -> int:
        """How many requests it takes; the prefix of a cached prefill was sent by the probe of its length."""
        return {Kind.PREFILL: 1, Kind.DECODE: self.size, Kind.TRANSFER: 2}[self.kind]


@dataclass(frozen=True, slots=True, kw_only=True)
class Density:
    """How finely and how often to probe."""

    step: int
    """Each size is this many times the one before."""
    largest_batch: int
    prefill_rounds: int
    """At least; what the budget has left goes to more of them."""
    decode_rounds: int
    """Fewer, because a decode probe repeats its step by itself."""


DENSITIES = (
    Density(step=2, largest_batch=256, prefill_rounds=7, decode_rounds=2),
    Density(step=2, largest_batch=64, prefill_rounds=7, decode_rounds=2),
    Density(step=2, largest_batch=64, prefill_rounds=3, decode_rounds=1),
    Density(step=4, largest_batch=64, prefill_rounds=3, decode_rounds=1),
    Density(step=4, largest_batch=16, prefill_rounds=3, decode_rounds=1),
    Density(step=4, largest_batch=16, prefill_rounds=1, decode_rounds=1),
)
"""From the best to the cheapest."""
MOST_PREFILL_ROUNDS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Rounds of probes; within a round a prefix comes before the prompts that add to it."""

    rounds: tuple[tuple[Probe, ...], ...]
    warm_up_tokens: tuple[int, ...]
    """Prompts to send before anything counts."""
    warms_transfers: bool

    @property
    def requests(self) -> int:
        """What the whole plan costs, warm-up included."""
        warm_up = len(self.warm_up_tokens) + WARM_UP_STREAMS + 2 * self.warms_transfers
        return warm_up + sum(probe.requests for one in self.rounds for probe in one)

    @property
    def round_requests(self) -> int:
        """What one more round costs: one without decodes, unless there is only one."""
        return sum(probe.requests for probe in self.rounds[-1])


def make_plan(limits: Limits, *, budget: int, transfers: bool) -> Plan:
    """The densest plan of at most `budget` requests.

    Raises:
        CalibrationError: not even the cheapest can be had.
    """
    for density in DENSITIES:
        plan = _plan(limits, density, transfers=transfers)
        left = budget - plan.requests
        if left >= 0:
            more = min(left // plan.round_requests, MOST_PREFILL_ROUNDS - density.prefill_rounds)
            return replace(plan, rounds=plan.rounds + (plan.rounds[-1],) * more)
    raise CalibrationError(f"a calibration takes at least {plan.requests} requests, the budget is {budget}")


def decode_output_tokens(probe: Probe, limits: Limits) -> int:
    """Output tokens of a decode probe's streams: the first decode while the last prompts are still computed."""
    prefill_steps = -(-probe.size * probe.context_tokens // limits.max_batched_tokens)
    return WINDOW_TOKENS + 8 + prefill_steps + probe.size // 4


def _plan(limits: Limits, density: Density, *, transfers: bool) -> Plan:
    roof = min(limits.max_batched_tokens, int(LENGTH_SHARE * limits.longest_tokens))
    if roof < LEAST_PREFIX_TOKENS:
        raise CalibrationError(f"requests of {limits.longest_tokens} tokens are too short to calibrate with")
    sizes = list(_powers(LEAST_PREFILL_TOKENS, roof, density.step))
    prefixes = [size for size in sizes if size >= LEAST_PREFIX_TOKENS][:: 4 // density.step]
    prefills = list(_prefills(limits, sizes, prefixes))
    handed = [Probe(kind=Kind.TRANSFER, size=size) for size in prefixes] if transfers else []
    decodes = list(_decodes(limits, density))
    rounds = [
        (*prefills, *handed, *(decodes if number < density.decode_rounds else ()))
        for number in range(density.prefill_rounds)
    ]
    return Plan(rounds=tuple(rounds), warm_up_tokens=(sizes[0], sizes[-1]), warms_transfers=transfers)


def _prefills(limits: Limits, sizes: Sequence[int], prefixes: Sequence[int]) -> Iterable[Probe]:
    """Each prefix is followed at once by what adds to it, so that a small cache still holds it."""
    for size in sizes:
        yield Probe(kind=Kind.PREFILL, size=size)
        for new in NEW_TOKENS if size in prefixes else ():
            if size + new <= LENGTH_SHARE * limits.longest_tokens:
                yield Probe(kind=Kind.PREFILL, size=new, context_tokens=size)


def _decodes(limits: Limits, density: Density) -> Iterable[Probe]:
    batches = list(_powers(1, min(density.largest_batch, limits.max_running), density.step))
    for place, context in enumerate(CONTEXTS):
        for batch in batches if place == 0 else dict.fromkeys([*batches[::3], batches[-1]]):
            probe = Probe(kind=Kind.DECODE, size=batch, context_tokens=context)
            length = context + decode_output_tokens(probe, limits)
            if length <= LENGTH_SHARE * limits.longest_tokens and batch * length <= CACHE_SHARE * limits.kv_tokens:
                yield probe


def _powers(first: int, last: int, step: int) -> Iterable[int]:
    """From `first` to `last`, both included; none is close below the last."""
    size = first
    while size * 1.25 < last:
        yield size
        size *= step
    yield last
