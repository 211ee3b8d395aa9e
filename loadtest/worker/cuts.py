"""An answer that ends before its time, exact to the token.

The rule: tokens before the cut are told as usual, however many arrived together; nothing of the rest is.
"""

from collections.abc import Iterable
from dataclasses import replace

from loadtest.worker.errors import ApiError
from loadtest.worker.faults import Fault, FaultKind
from loadtest.worker.generation import Delta


class HangUp(Exception):  # noqa: N818 - not an error: it is what was asked for
    """The connection is to end here."""


class Cut:
    """Ends one answer after some output tokens, with an exception."""

    def __init__(self, after_tokens: int, ending: HangUp | ApiError) -> None:
        self._left = after_tokens
        self._ending = ending

    def take(self, deltas: Iterable[Delta]) -> list[Delta]:
        """What of these tokens comes before the cut."""
        kept = []
        for delta in deltas:
            count = min(delta.count, self._left)
            self._left -= count
            if count:
                kept.append(replace(delta, count=count, ended=delta.ended and count == delta.count))
        return kept

    def raise_if_due(self) -> None:
        """Raise the ending if every token before it has been taken."""
        if not self._left:
            self.break_here()

    def break_here(self) -> None:
        """Raise the ending."""
        raise self._ending


def cut_of(fault: Fault) -> Cut | None:
    """The cut that a fault makes in an answer; None for faults of another kind."""
    match fault.kind:
        case FaultKind.DIE_AFTER_TOKENS:
            return Cut(fault.after_tokens, HangUp())
        case FaultKind.ERROR_EVENT:
            return Cut(fault.after_tokens, ApiError.internal())
        case _:
            return None
