"""From an engine file, as `tidegate calibrate` writes it, to what the decision core prices routes with.

The rule of this module: it reads what it needs of such a file and leaves the rest alone; the file's own format is the
emulator's (`loadtest.engine.engine_file`).
"""

from pathlib import Path
from typing import Annotated, Protocol

import msgspec

from gateway.core.engine_costs import EngineCosts
from gateway.core.step_cost import CostTable
from policy_store.costs.file import CostFile, to_table


class EnginePriceError(ValueError):
    """A file that prices no engine; the message names it and what is wrong."""


class Limits(Protocol):
    """What must be known of an engine beside its table."""

    @property
    def max_batched_tokens(self) -> int:
        """Token budget of one step."""

    @property
    def intake_s(self) -> float:
        """Between a request's arrival and its place in the queue."""

    @property
    def intake_token_s(self) -> float:
        """The same, per prompt token."""

    @property
    def kv_bytes_per_token(self) -> int:
        """Size of a token's KV."""

    @property
    def transfer_bytes_per_s(self) -> float:
        """Rate of a transfer; above 0."""

    @property
    def transfer_latency_s(self) -> float:
        """Before a transfer's first byte."""


class _Limits(msgspec.Struct, frozen=True, kw_only=True):
    max_batched_tokens: int
    intake_s: float = 0.0
    intake_token_s: float = 0.0
    kv_bytes_per_token: int
    transfer_bytes_per_s: Annotated[float, msgspec.Meta(gt=0)]
    transfer_latency_s: float


class _Engine(msgspec.Struct, frozen=True, kw_only=True):
    limits: _Limits
    costs: CostFile


def engine_costs(limits: Limits, table: CostTable) -> EngineCosts:
    """What an engine with these limits and prices takes."""
    return EngineCosts(
        table=table,
        max_batched_tokens=limits.max_batched_tokens,
        intake_s=limits.intake_s,
        intake_token_s=limits.intake_token_s,
        transfer_latency_s=limits.transfer_latency_s,
        transfer_token_s=limits.kv_bytes_per_token / limits.transfer_bytes_per_s,
    )


def read_engine_costs(file: Path) -> EngineCosts:
    """What the engine of a file takes.

    Raises:
        EnginePriceError: it cannot be read, is no engine file, or its prices make no sense.
    """
    try:
        engine = msgspec.json.decode(file.read_bytes(), type=_Engine)
        return engine_costs(engine.limits, to_table(engine.costs))
    except OSError as error:
        raise EnginePriceError(f"cannot read engine file {file}: {error.strerror}") from error
    except (msgspec.MsgspecError, ValueError) as error:
        raise EnginePriceError(f"{file} prices no engine: {error}") from error
