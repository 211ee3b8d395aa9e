"""What a calibration asks of a worker, and what it hears.

The rule of this module: data and one protocol. Times are engine seconds from any fixed moment: whoever talks to an
emulated worker that runs at another speed has multiplied them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One completion of exactly `output_tokens` tokens."""

    text: str
    output_tokens: int
    kv_transfer_params: bytes | None = None
    """Raw JSON from the prefill leg; with it this is a decode leg."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """One streamed answer."""

    sent_s: float
    token_s: tuple[float, ...]
    """When each output token came."""
    prompt_tokens: int
    cached_tokens: int | None
    """None where the worker does not report it."""

    @property
    def ttft_s(self) -> float:
        """From the request's last byte to the first token."""
        return self.token_s[0] - self.sent_s


class AskError(Exception):
    """A request that was not answered as asked."""


class Target(Protocol):
    """A worker under probe; nobody else should be using it."""

    async def stream(self, asks: Sequence[Ask]) -> list[Heard]:
        """Ask all at once and hear all to their ends, in the order of the asks; raises AskError."""

    async def prefill(self, ask: Ask) -> bytes:
        """The prefill leg of an ask: the raw `kv_transfer_params` for its decode leg; raises AskError."""

    async def metrics(self) -> str:
        """The worker's /metrics page; raises AskError."""
