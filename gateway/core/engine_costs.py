"""What an engine takes for a prefill, for a decode step and for fetching a prompt's KV.

The rule of this module: prices only; who waits for whom is in `forecast`.
"""

from dataclasses import dataclass

from gateway.core.step_cost import CostTable, StepWork

MOST_CHUNKS = 64
"""Priced one by one; a longer prompt, which no engine takes, goes on as it began."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginePower:
    """What a worker's GPUs draw together, in watts, as a model has it.

    Raises:
        ValueError: these do not rise from idle to decoding and prefill.
    """

    idle_w: float
    decode_w: float
    """In a step without prompt tokens."""
    prefill_w: float
    """In the time that prompt tokens add to a step."""

    def __post_init__(self) -> None:
        if not 0 <= self.idle_w <= self.decode_w <= self.prefill_w:
            raise ValueError("power must not be negative, and must rise from idle to decode and prefill")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCosts:
    """One pool's engine: what its steps cost, and the limits that decide how many steps there are."""

    table: CostTable
    max_batched_tokens: int
    """Token budget of one step."""
    intake_s: float = 0.0
    """Between a request's arrival and its place in the queue."""
    intake_token_s: float = 0.0
    transfer_latency_s: float = 0.0
    transfer_token_s: float = 0.0
    """Per token whose KV is fetched from another worker."""
    power: EnginePower | None = None
    """None: energy is not accounted for."""

    def __post_init__(self) -> None:
        if self.max_batched_tokens < 1:
            raise ValueError("max_batched_tokens must be at least 1")
        times = (self.intake_s, self.intake_token_s, self.transfer_latency_s, self.transfer_token_s)
        if not all(each >= 0 for each in times):
            raise ValueError("times must be at least 0")

    def prefill_s(self, new_tokens: int, cached_tokens: int, *, decodes: int = 0, context_tokens: int = 0) -> float:
        """Seconds that the steps of one prompt take from the first to the last.

        Args:
            new_tokens: to compute.
            cached_tokens: whose KV is there already.
            decodes: sequences that decode in the same steps, which take a token of the budget each.
            context_tokens: what those attend to, summed.
        """
        budget = max(1, self.max_batched_tokens - decodes)
        seconds, done = 0.0, 0
        for step in range(MOST_CHUNKS):
            chunk = max(1, min(budget, new_tokens - done))
            work = StepWork(((chunk, cached_tokens + done),), decodes, context_tokens + decodes * step)
            seconds += self.table.step_seconds(work)
            done += chunk
            if done >= new_tokens:
                return seconds
        return seconds * (new_tokens / done)

    def prefill_j(self, prefill_s: float, due_s: float) -> float:
        """Joules beyond idling that a prefill takes; 0 where the power is not known.

        Args:
            prefill_s: of its steps.
            due_s: what those would have taken without it; 0 where the worker had nothing to do.
        """
        power = self.power
        if power is None:
            return 0.0
        # A step reads the weights for whatever is in it: as much as for a single token.
        alone_s = 0.0 if due_s else min(prefill_s, self.decode_step_s(1, 1))
        added_s = max(0.0, prefill_s - max(due_s, alone_s))
        return alone_s * (power.decode_w - power.idle_w) + added_s * (power.prefill_w - power.idle_w)

    def decode_step_s(self, sequences: int, context_tokens: int) -> float:
        """Seconds of one step in which all of a batch adds a token; zero for an empty batch."""
        return self.table.step_seconds(StepWork((), sequences, context_tokens)) if sequences else 0.0

    def transfer_s(self, tokens: int) -> float:
        """Seconds until the KV of so many tokens is here, over an idle link."""
        return self.transfer_latency_s + self.transfer_token_s * tokens if tokens > 0 else 0.0

    def arrival_s(self, prompt_tokens: int) -> float:
        """Seconds until a request is in the queue."""
        return self.intake_s + self.intake_token_s * prompt_tokens
