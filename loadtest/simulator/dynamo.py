"""The rules of Dynamo's offline replay: its engine's prices, its two ways to place, and its engines' limits.

They are here so that the host and the scheduler can be held against a simulator that others wrote. Its engine charges
a decode step by the KV in use and not by the batch, its prefill by new tokens alone, and lets transfers run side by
side; the project's own engines are priced from measurements instead.

Source: ai-dynamo 1.6.1, `dynamo.replay.run_trace_replay` with the vLLM backend's defaults.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from gateway.core.step_cost import StepWork
from loadtest.engine.engine import Engine
from loadtest.engine.types import EngineSnapshot, EngineSpec
from loadtest.simulator.flight import Flight

SPEC = EngineSpec(
    name="dynamo-replay",
    block_tokens=64,
    total_blocks=16_384,
    max_batched_tokens=8192,
    max_running=256,
    kv_bytes_per_token=131_072,
    transfer_bytes_per_s=50e9,
    transfer_latency_s=0.0,
    transfers_share_link=False,
    transfers_whole_prompt=True,
    reservations_per_step=1,
    hold_lease_s=1e9,
)
NS_PER_MS = 1e6
DECODE_BASE_MS, DECODE_SLOPE_MS, DECODE_BEND_MS = 5.74, 54.01, -25.74
DECODE_FULL_MS = DECODE_BASE_MS + DECODE_SLOPE_MS + DECODE_BEND_MS


@dataclass(frozen=True, slots=True)
class ReplayCosts:
    """A step takes its prefill part and its decode part, each in whole nanoseconds."""

    kv_tokens: int
    """The engine's KV cache."""

    def step_seconds(self, work: StepWork) -> float:
        """Prefill by new tokens, decode by KV in use; sequences that finish their prompt do not count as decoding."""
        decode_ns = self._decode_ns(work.decode_context_tokens) if work.decode_sequences else 0
        return (self._prefill_ns(work.prefill) + decode_ns) * 1e-9

    def decode_stretch(self, sequences: int, context_tokens: int) -> "ReplayStretch":
        """Decode steps whose KV grows by a token of each sequence from one to the next."""
        return ReplayStretch(self.kv_tokens, sequences, context_tokens)

    def _prefill_ns(self, chunks: Sequence[tuple[int, int]]) -> int:
        if not chunks:
            return 0
        count, new, before = len(chunks), 0, 0
        for chunk in chunks:
            new += chunk[0]
            before += chunk[1]
        tokens = count * ((new + before) // count - before // count)
        return round((4.209989e-7 * tokens * tokens + 1.518344e-2 * tokens + 16.50142) * NS_PER_MS) if tokens else 0

    def _decode_ns(self, context_tokens: int) -> int:
        use = min(1.0, context_tokens / self.kv_tokens)
        return round((DECODE_BASE_MS + DECODE_SLOPE_MS * use + DECODE_BEND_MS * use * use) * NS_PER_MS)


class ReplayStretch:
    """The sum over a stretch in closed form; rounding to nanoseconds is left out.

    A step takes `base + slope u + bend u^2` ms, where u grows by the same amount from step to step until it is 1.
    """

    __slots__ = ("_inside", "_terms_ms")

    def __init__(self, kv_tokens: int, sequences: int, context_tokens: int) -> None:
        use, growth = context_tokens / kv_tokens, sequences / kv_tokens
        first = DECODE_BASE_MS + DECODE_SLOPE_MS * use + DECODE_BEND_MS * use * use
        linear = growth * (DECODE_SLOPE_MS + 2 * DECODE_BEND_MS * use)
        square = growth * growth * DECODE_BEND_MS
        # Sums of i and of i^2 over the steps 0 .. n-1, by powers of n.
        self._terms_ms = (first - linear / 2 + square / 6, linear / 2 - square / 2, square / 3)
        self._inside = max(0, (kv_tokens - context_tokens) // sequences + 1)

    def seconds(self, steps: int) -> float:
        """How long the first `steps` steps take together."""
        one, two, three = self._terms_ms
        inside = self._inside
        if steps <= inside:
            return ((three * steps + two) * steps + one) * steps * 1e-3
        return (((three * inside + two) * inside + one) * inside + DECODE_FULL_MS * (steps - inside)) * 1e-3


class _AtOnce:
    """Places every flight as it comes, and never looks at an engine's metrics."""

    def released(self, now_s: float) -> Sequence[Flight]:  # noqa: ARG002
        """Nobody waits."""
        return ()

    def sampled(self, engine: int, snapshot: EngineSnapshot, now_s: float) -> None:
        """Nothing to learn."""


class RoundRobin(_AtOnce):
    """Prefill engines by order of arrival, decode engines by order of the end of prefill."""

    def __init__(self, prefill: Sequence[int], decode: Sequence[int]) -> None:
        self._prefill, self._decode = prefill, decode
        self._arrivals = self._hand_offs = 0

    def arrived(self, flight: Flight, now_s: float) -> None:
        """The next engine in turn."""
        del now_s
        pool = self._prefill or self._decode
        place = pool[self._arrivals % len(pool)]
        self._arrivals += 1
        if self._prefill:
            flight.prefill_engine = place
        else:
            flight.decode_engine = place

    def prefilled(self, flight: Flight, now_s: float) -> None:
        """The next decode engine in turn."""
        del now_s
        flight.decode_engine = self._decode[self._hand_offs % len(self._decode)]
        self._hand_offs += 1

    def first_token(self, flight: Flight, now_s: float) -> None:
        """Nothing to learn."""

    def ended(self, flight: Flight, now_s: float) -> None:
        """Nothing to learn."""


class KvRouter(_AtOnce):
    """Dynamo's kv_router with its defaults: the lowest cost in blocks, exact ties at random."""

    def __init__(self, engines: Sequence[Engine], prefill: Sequence[int], decode: Sequence[int], rng: Random) -> None:
        self._engines = engines
        self._prefill, self._decode = prefill, decode
        self._rng = rng
        self._prefill_tokens = [0] * len(engines)
        """Uncached prompt tokens placed and not yet prefilled, by engine."""
        self._blocks = [0] * len(engines)
        """Full prompt blocks of unfinished requests, by decode engine."""
        self._active: list[dict[tuple[int, int], int]] = [{} for _ in engines]
        """Distinct prompt blocks in use, by aggregated engine: how many requests use each piece."""
        self._placed_tokens: dict[int, int] = {}

    def arrived(self, flight: Flight, now_s: float) -> None:
        """By queued prefill and cached prefix; where engines do both, by the blocks in use there too."""
        del now_s
        pool = self._prefill or self._decode
        place = self._cheapest(pool, [self._prefill_cost(flight, place) for place in pool])
        tokens = max(0, flight.request.input_tokens - self._hit_blocks(flight, place) * SPEC.block_tokens)
        self._placed_tokens[flight.request.index] = tokens
        self._prefill_tokens[place] += tokens
        if self._prefill:
            flight.prefill_engine = place
        else:
            flight.decode_engine = place
            self._use(flight, place, 1)

    def prefilled(self, flight: Flight, now_s: float) -> None:
        """By the blocks of unfinished requests."""
        del now_s
        self._end_prefill(flight, flight.prefill_engine)
        blocks = flight.request.input_tokens // SPEC.block_tokens
        place = self._cheapest(self._decode, [float(self._blocks[place] + blocks) for place in self._decode])
        self._blocks[place] += blocks
        flight.decode_engine = place

    def first_token(self, flight: Flight, now_s: float) -> None:
        """An aggregated engine's prefill is over."""
        del now_s
        if not self._prefill:
            self._end_prefill(flight, flight.decode_engine)

    def ended(self, flight: Flight, now_s: float) -> None:
        """Its blocks are in use no more."""
        del now_s
        if self._prefill:
            self._blocks[flight.decode_engine] -= flight.request.input_tokens // SPEC.block_tokens
        else:
            self._use(flight, flight.decode_engine, -1)

    def _cheapest(self, pool: Sequence[int], costs: Sequence[float]) -> int:
        least = min(costs)
        return self._rng.choice([place for place, cost in zip(pool, costs, strict=True) if cost == least])

    def _prefill_cost(self, flight: Flight, place: int) -> float:
        queued = (self._prefill_tokens[place] + flight.request.input_tokens) / SPEC.block_tokens
        cost = max(0.0, queued - self._hit_blocks(flight, place))
        return cost if self._prefill else cost + self._blocks_in_use(flight, place)

    def _hit_blocks(self, flight: Flight, place: int) -> int:
        return self._engines[place].known_blocks(flight.request.hash_ids, flight.request.block_tokens // 64)

    def _end_prefill(self, flight: Flight, place: int) -> None:
        self._prefill_tokens[place] -= self._placed_tokens.pop(flight.request.index, 0)

    def _pieces(self, flight: Flight) -> list[tuple[int, int]]:
        """(id, full blocks) of the prompt's pieces."""
        request = flight.request
        left, size = request.input_tokens // SPEC.block_tokens, request.block_tokens // SPEC.block_tokens
        return [(name, min(size, left - at * size)) for at, name in enumerate(request.hash_ids) if left > at * size]

    def _blocks_in_use(self, flight: Flight, place: int) -> int:
        active = self._active[place]
        return self._blocks[place] + sum(piece[1] for piece in self._pieces(flight) if piece not in active)

    def _use(self, flight: Flight, place: int, change: int) -> None:
        active = self._active[place]
        for piece in self._pieces(flight):
            users = active.get(piece, 0)
            if not (users and users + change):
                self._blocks[place] += change * piece[1]
            if users + change:
                active[piece] = users + change
            else:
                del active[piece]
