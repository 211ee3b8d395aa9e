"""An engine whose steps last a second each, so that times in tests are small whole numbers."""

from dataclasses import dataclass, field
from typing import Any

from gateway.core.step_cost import StepWork
from loadtest.engine.engine import Engine
from loadtest.engine.types import (
    EngineEvent,
    EngineRequest,
    EngineSpec,
    RequestFinished,
    TokenMade,
    TransferFinished,
)

SPEC = EngineSpec(
    name="lab",
    block_tokens=4,
    total_blocks=100,
    max_batched_tokens=16,
    max_running=8,
    kv_bytes_per_token=10,
    transfer_bytes_per_s=40.0,
    transfer_latency_s=0.5,
    hold_lease_s=30.0,
)


@dataclass(frozen=True, slots=True)
class SteadyStretch:
    """Steps that take equally long."""

    step_s: float

    def seconds(self, steps: int) -> float:
        return self.step_s * steps


@dataclass(slots=True)
class SteadyCosts:
    """Every step takes equally long; the work of each is kept."""

    step_s: float = 1.0
    steps: list[StepWork] = field(default_factory=list)

    def step_seconds(self, work: StepWork) -> float:
        self.steps.append(work)
        return self.step_s

    def decode_stretch(self, sequences: int, context_tokens: int) -> SteadyStretch:
        self.steps.append(StepWork(decode_sequences=sequences, decode_context_tokens=context_tokens))
        return SteadyStretch(self.step_s)


def chain(name: int, blocks: int) -> tuple[int, ...]:
    """The hashes of a text's leading blocks; texts differ by name."""
    return tuple(name * 1000 + block for block in range(blocks))


class Lab:
    """One engine, the events that it gave, and readings of them."""

    def __init__(self, *, tells_every_token: bool = True, **limits: Any) -> None:
        settings = {name: getattr(SPEC, name) for name in EngineSpec.__slots__}
        self.spec = EngineSpec(**(settings | limits))
        self.costs = SteadyCosts()
        self.engine = Engine(self.spec, self.costs, tells_every_token=tells_every_token)
        self.events: list[EngineEvent] = []
        self.now_s = 0.0

    def add(self, request_id: str, prompt: int, output: int = 1, *, text: int | None = None, **more: Any) -> None:
        """Add a request now; prompts with the same `text` begin alike."""
        hashes = () if text is None else chain(text, prompt // self.spec.block_tokens)
        request = EngineRequest(
            request_id=request_id,
            prompt_tokens=prompt,
            output_tokens=output,
            **({"block_hashes": hashes} | more),
        )
        self.engine.add(request, self.now_s)

    def run(self, until_s: float) -> list[EngineEvent]:
        """Let time go on; what happened."""
        self.now_s = until_s
        new = self.engine.advance(until_s)
        self.events += new
        return new

    def drain(self) -> None:
        """Let everything happen that will happen by itself."""
        while (due_s := self.engine.next_event_at_s()) is not None:
            self.run(due_s)

    def token_times(self, request_id: str) -> list[float]:
        """When each token was made; their indices must be 0, 1, 2 …"""
        made = [e for e in self.events if isinstance(e, TokenMade) and e.request_id == request_id]
        assert [e.index for e in made] == list(range(len(made)))
        return [e.at_s for e in made]

    def finish(self, request_id: str) -> RequestFinished:
        """How the request finished; it must have, once."""
        (event,) = (e for e in self.events if isinstance(e, RequestFinished) and e.request_id == request_id)
        return event

    def arrival_s(self, request_id: str) -> float:
        """When the request's transfer ended."""
        (event,) = (e for e in self.events if isinstance(e, TransferFinished) and e.request_id == request_id)
        return event.at_s

    @property
    def used_blocks(self) -> int:
        """Blocks that somebody references."""
        return round(self.engine.snapshot().kv_used_ratio * self.spec.total_blocks)
