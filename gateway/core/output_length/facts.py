"""What output-length prediction is told about a request.

The rule of this module: data only. Text lives here while a request is read and nowhere after: what is kept of it are
the features.
"""

from dataclasses import dataclass

MAX_PREVIOUS_OUTPUTS = 64
"""Only so many of a conversation's last outputs are looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptFacts:
    """One request before its answer."""

    text: str
    """The text parts of the last message that is not the model's own; empty where it has none."""
    prompt_tokens: float
    """Length of the whole prompt, as the gateway estimates it."""
    model: str
    tools: int = 0
    """How many tools the request offers."""
    tenant: str | None = None
    previous_outputs: tuple[int, ...] = ()
    """Tokens of the conversation's earlier answers, oldest first."""
    previous_prompt_tokens: float | None = None
    """Length of the conversation's previous prompt."""
    after_tool: bool | None = None
    """Whether the last message is a tool's result; None where that is not known."""
