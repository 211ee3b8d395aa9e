"""What a request says of the conversation that it is a turn of.

The rule of this module: data only, and no text: names, kinds and hashes.
"""

from enum import StrEnum

from gateway.core.record import record


class TurnKind(StrEnum):
    """What a turn is to its conversation's KV: a closed list, used as a metric label."""

    FIRST = "first"
    """The conversation begins."""
    NEXT = "next"
    """It goes on where it lives, or where its name says that it does."""
    MOVED = "moved"
    """Its history is not where it goes: it was lost or given up there, or nobody remembers it."""


@record
class ConversationFacts:
    """What a request says of the conversation that it is a turn of, without its text."""

    label: str | None = None
    """The client's own name for it, and where that stood: `x-session-id=abc`; None where it gave none."""
    parent: str | None = None
    """The label of the conversation that this one was called by."""
    is_final: bool = False
    """The client says that no turn will follow."""
    response_id: str | None = None
    """The worker's answer that this request goes on from, where the worker keeps the history."""
    tenant: int = 0
    """A hash of who sends it; 0 where that is not known."""
    turns: tuple[int, ...] = ()
    """Chained 64-bit hashes of the history: of all that stands before each answer of the model, and last of all that
    was sent. So a later turn's hashes begin with those of the turn before it; equal ones mean equal messages under
    the same model. Of more than 65 only the first and the newest 64 are told. Empty where the request has no
    messages."""
    history_blocks: int = 0
    """Leading blocks of the prompt's chain that stand before the last answer of the model: what the turn before was
    asked with. 0 where there was none, and where that is not known."""
