"""Faults that a worker can be told to have, and which call gets which.

A switch is turned on for a number of calls or until it is cleared; of one kind there is one switch. This module
decides; `loadtest.worker.sabotage` does the harm.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import msgspec


class FaultKind(StrEnum):
    """What goes wrong."""

    REFUSE = "refuse"
    """The worker does not listen: its connections end, new ones are refused. It concerns every call."""
    HANG = "hang"
    """The call is read and never answered."""
    SLOW = "slow"
    """The call is taken up only after `delay_s`."""
    STATUS = "status"
    """The answer is an error with `status`, and `retry_after_s` as its Retry-After."""
    DIE_BEFORE_FIRST_BYTE = "die_before_first_byte"
    """The connection ends without a byte."""
    DIE_AFTER_TOKENS = "die_after_tokens"
    """The connection ends after `after_tokens` output tokens, or instead of the answer's end."""
    DIE_BETWEEN_LEGS = "die_between_legs"
    """A prefill leg is answered, then its KV is gone, and who claims it loses the connection."""
    WRONG_JSON = "wrong_json"
    """A JSON answer is cut in half, under a head that says so."""
    NO_KV_PARAMS = "no_kv_params"
    """A prefill leg's answer has null for its kv_transfer_params; its KV is freed."""
    DRIP = "drip"
    """The answer's body comes byte by byte, each after `delay_s`."""
    WRONG_CONTENT_LENGTH = "wrong_content_length"
    """The head declares more than is sent before the connection ends."""
    SHORT_CONTENT_LENGTH = "short_content_length"
    """The head declares less than is sent before the connection ends."""
    ERROR_EVENT = "error_event"
    """A stream tells an error after `after_tokens` output tokens, or instead of its end."""
    GARBAGE = "garbage"
    """The answer is not HTTP."""


class Leg(StrEnum):
    """What a call is in the two-leg flow."""

    PREFILL = "prefill"
    DECODE = "decode"
    PLAIN = "plain"
    """A call for work that is neither leg."""
    PROBE = "probe"
    """A question about the worker: health, metrics, models."""


class FaultRoute(StrEnum):
    """Which calls a fault concerns."""

    ANY = "any"
    """Every call for work."""
    PREFILL = "prefill"
    DECODE = "decode"
    PLAIN = "plain"
    PROBE = "probe"


_PREFILL_ONLY = frozenset({FaultKind.DIE_BETWEEN_LEGS, FaultKind.NO_KV_PARAMS})
_DELAYED = frozenset({FaultKind.SLOW, FaultKind.DRIP})


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault. Raises ValueError for one that cannot be."""

    kind: FaultKind
    count: int | None = None
    """How many calls get it; None: all, until it is cleared."""
    route: FaultRoute = FaultRoute.ANY
    after_tokens: int = 0
    delay_s: float = 0.0
    status: int = 500
    retry_after_s: int | None = None

    def __post_init__(self) -> None:
        if self.count is not None and self.count < 1:
            raise ValueError(f"count must be at least 1, got {self.count}")
        if self.kind is FaultKind.REFUSE and (self.count is not None or self.route is not FaultRoute.ANY):
            raise ValueError("refuse concerns every call until it is cleared: it takes no count and no route")
        if self.after_tokens < 0:
            raise ValueError(f"after_tokens must not be negative, got {self.after_tokens}")
        if self.delay_s < 0 or (self.kind in _DELAYED and not self.delay_s):
            raise ValueError(f"{self.kind} needs a delay_s above 0, got {self.delay_s}")
        if not 200 <= self.status <= 599:
            raise ValueError(f"status must be between 200 and 599, got {self.status}")

    def concerns(self, leg: Leg, *, stream: bool) -> bool:
        """Whether a call may get it."""
        if self.kind is FaultKind.REFUSE or (self.kind in _PREFILL_ONLY and leg is not Leg.PREFILL):
            return False
        if stream if self.kind is FaultKind.WRONG_JSON else self.kind is FaultKind.ERROR_EVENT and not stream:
            return False
        return leg is not Leg.PROBE if self.route is FaultRoute.ANY else leg.value == self.route.value


FAULT = msgspec.json.Decoder(Fault)


@dataclass(slots=True)
class _Switch:
    fault: Fault
    left: int | None
    fired: int = 0


class FaultSwitches:
    """The faults of one worker, in the order in which they were turned on."""

    def __init__(self, faults: Iterable[Fault] = ()) -> None:
        self._switches: dict[FaultKind, _Switch] = {}
        for fault in faults:
            self.turn_on(fault)

    @property
    def refusing(self) -> bool:
        """Whether the worker is not to listen."""
        return FaultKind.REFUSE in self._switches

    def turn_on(self, fault: Fault) -> None:
        """Turn a fault on, in place of one of its kind."""
        self._switches[fault.kind] = _Switch(fault, fault.count)

    def clear(self) -> None:
        """Turn every fault off."""
        self._switches.clear()

    def may_fire(self) -> bool:
        """Whether any call could get a fault at all."""
        return any(switch.left != 0 for switch in self._switches.values())

    def take(self, leg: Leg, *, stream: bool) -> Fault | None:
        """The fault that this call gets, counted as fired: the first that concerns it."""
        for switch in self._switches.values():
            if switch.left != 0 and switch.fault.concerns(leg, stream=stream):
                switch.fired += 1
                switch.left = None if switch.left is None else switch.left - 1
                return switch.fault
        return None

    def report(self) -> list[dict[str, Any]]:
        """Each switch's fault, the calls `left` to it (None: no end) and how often it `fired`."""
        return [
            msgspec.to_builtins(switch.fault) | {"left": switch.left, "fired": switch.fired}
            for switch in self._switches.values()
        ]
