"""The format of an engine file: one JSON with an engine's limits, its prices, and how both were found.

The rule of this module: whoever takes a preset's name can take such a file instead; nothing in it is computed here.
"""

from pathlib import Path

import msgspec

from gateway.core.step_cost import CostTable
from loadtest.engine.types import EngineSpec
from policy_store.costs.file import CostFile, to_table

SUFFIX = ".json"
"""Tells a file from a preset's name."""


class EngineFileError(ValueError):
    """A file that is no engine file; the message names it and what is wrong."""


class Calibration(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The measurement that an engine file rests on."""

    at: str
    """Its end, in ISO 8601 and UTC."""
    url: str
    prefill_url: str | None
    """The other end of the measured transfers; None where none were measured."""
    model: str
    speed: float
    """What all times were multiplied by: that of an emulated worker, else 1."""
    requests: int
    """Sent in all."""
    budget_requests: int
    measurements: int
    failed_probes: int


class EngineFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One engine."""

    limits: EngineSpec
    max_model_len: int | None
    """Prompt plus output tokens of one request; None where the worker did not say."""
    costs: CostFile
    calibration: Calibration | None = None


def read_engine_file(path: Path) -> EngineFile:
    """The file's content.

    Raises:
        EngineFileError: it is no engine file.
        OSError: it cannot be read.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=EngineFile)
    except msgspec.MsgspecError as error:
        raise EngineFileError(f"{path} is no engine file: {error}") from error


def load_engine_file(path: Path) -> tuple[EngineSpec, CostTable]:
    """The limits and prices of a file, as `load_engine` gives a preset's.

    Raises:
        EngineFileError: it is no engine file, or its prices are not monotone.
        OSError: it cannot be read.
    """
    file = read_engine_file(path)
    try:
        return file.limits, to_table(file.costs)
    except ValueError as error:
        raise EngineFileError(f"{path}: {error}") from error


def write_engine_file(file: EngineFile, path: Path) -> None:
    """Write it, for people to read."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(file), indent=2) + b"\n")
