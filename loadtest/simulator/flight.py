"""One request on its way through a simulated fleet.

The rule of this module: facts only. The host writes down what happened and when; dispatchers choose engines.
"""

from gateway.core.types import Decision
from loadtest.engine.types import EngineRequest
from loadtest.traces.types import TraceRequest

NOWHERE = -1
"""The engine of a leg that there is not, or that has not been chosen."""


class Flight:
    """A request's route and times; engines are named by their place in the fleet."""

    __slots__ = (
        "arrived_s",
        "cached_tokens",
        "decision",
        "decode_engine",
        "ended_s",
        "engine_id",
        "error",
        "first_token_s",
        "prefill_engine",
        "prefilled_s",
        "request",
    )

    def __init__(self, request: TraceRequest, arrived_s: float) -> None:
        self.request = request
        self.arrived_s = arrived_s
        self.engine_id = str(request.index)
        self.prefill_engine = NOWHERE
        """Of the prefill leg, on the remote path."""
        self.decode_engine = NOWHERE
        self.decision: Decision | None = None
        """Where the gateway's core decided."""
        self.prefilled_s: float | None = None
        """End of the prefill leg."""
        self.first_token_s: float | None = None
        self.ended_s: float | None = None
        self.cached_tokens = 0
        """Prompt tokens found in the cache of the engine that prefilled."""
        self.error: str | None = None

    @property
    def awaits_prefill(self) -> bool:
        """True while its prefill leg runs."""
        return self.prefill_engine != NOWHERE and self.prefilled_s is None

    @property
    def ttft_s(self) -> float | None:
        """From arrival to first token."""
        return None if self.first_token_s is None else self.first_token_s - self.arrived_s

    @property
    def tpot_s(self) -> float | None:
        """Mean gap between output tokens; None under two."""
        gaps = self.request.output_tokens - 1
        if self.first_token_s is None or self.ended_s is None or gaps < 1:
            return None
        return (self.ended_s - self.first_token_s) / gaps


class PromptShape:
    """A prompt's pieces in an engine's blocks; without any where the engine keeps none."""

    __slots__ = ("_block_tokens", "_is_kept")

    def __init__(self, block_tokens: int, *, is_kept: bool = True) -> None:
        self._block_tokens = block_tokens
        self._is_kept = is_kept

    def of(self, request: TraceRequest) -> tuple[tuple[int, ...], int]:
        """The hashes of the prompt's pieces with a full block, and how many blocks a piece has.

        Raises:
            ValueError: neither the trace's blocks nor the engine's are a multiple of the other.
        """
        if not self._is_kept:
            return (), 1
        size, trace_size = self._block_tokens, request.block_tokens
        full_blocks = request.input_tokens // size
        if trace_size % size == 0:
            piece = trace_size // size
            return request.hash_ids[: -(-full_blocks // piece)], piece
        if size % trace_size:
            raise ValueError(f"blocks of {trace_size} tokens in the trace do not go into the engine's of {size}")
        step = size // trace_size
        return request.hash_ids[step - 1 :: step][:full_blocks], 1


def leg(flight: Flight, shape: PromptShape, *, prefill: bool) -> EngineRequest:
    """What an engine is asked for one leg; a prefill leg makes one token and holds its KV."""
    request = flight.request
    hashes, hash_blocks = shape.of(request)
    remote = not prefill and flight.prefill_engine != NOWHERE
    return EngineRequest(
        request_id=flight.engine_id,
        prompt_tokens=request.input_tokens,
        output_tokens=1 if prefill else request.output_tokens,
        block_hashes=hashes,
        hash_blocks=hash_blocks,
        holds_kv=prefill,
        remote_tokens=request.input_tokens if remote else 0,
    )
