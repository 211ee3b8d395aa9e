"""What a trace is made of.

The rule of this module: data only. A trace request says when it arrives, how long it is and which prompt
blocks it shares with others; its text is made later, from its block ids.
"""

from dataclasses import dataclass

MOONCAKE_BLOCK_TOKENS = 512
"""Tokens that one hash id of the Mooncake traces stands for."""


class TraceError(Exception):
    """A trace could not be read: the message names the file and, where there is one, the line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRequest:
    """One request of a trace.

    `hash_ids` name the prompt's blocks of `block_tokens` tokens, the last of which may be partial. Ids are
    prefix-chained: an id that two requests share means that their prompts are equal up to that block's end.
    Without ids, and past the last of them, the prompt is unlike any other.
    """

    index: int
    """Position in order of arrival, from 0; of a session's later turns, of their nominal arrival."""
    arrival_s: float
    """Seconds since the trace began; nominal for a session's later turns, which come when the answer before them
    allows."""
    input_tokens: int
    output_tokens: int
    hash_ids: tuple[int, ...] = ()
    block_tokens: int = MOONCAKE_BLOCK_TOKENS
    session: str | None = None
    """The chain of prompts that it belongs to, where the trace knows: a conversation, or a sub-agent called in one.
    What shares a context, and so a KV cache, shares a session."""
    root: str | None = None
    """Of a sub-agent's request: the session, at the top of all that call, whose user waits."""
    turn: int = 0
    """Its number in its session, from 0; 0 throughout where the trace does not number turns."""
    is_visible: bool = True
    """Whether its answer shows the user text. Never so of a sub-agent's, whose text goes to its caller."""
    is_last: bool = False
    """It is known that its session has no turn after it."""

    @property
    def conversation(self) -> str | None:
        """What its user waits for: the session, or the one at whose root it was called; None without either."""
        return self.session if self.root is None else self.root
