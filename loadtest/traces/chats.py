"""Readers of conversations that were kept as messages, without times or token counts: tau-bench and SWE-agent.

The rule of this module: equal text is equal blocks, within a session and across sessions, so that a system prompt is
shared because it is the same. Token counts follow from characters at the ratio that each source was measured to have.

An answer shows the user text where its message has content. tau-bench's calls of tools mostly have none; SWE-agent's
answers all say what they are about to do.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from loadtest.traces.files import json_lines, opened
from loadtest.traces.sessions import Session, Turn
from loadtest.traces.types import TraceError


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatFormat:
    """What differs between the sources."""

    prompt_chars_per_token: float
    output_chars_per_token: float


TAUBENCH = ChatFormat(prompt_chars_per_token=3.76, output_chars_per_token=2.92)
"""From the means of 2,454 gpt-4o calls: 2,851 prompt and 79 output tokens; outputs are mostly JSON."""
SWE_AGENT = ChatFormat(prompt_chars_per_token=3.82, output_chars_per_token=3.52)
"""From the means of 230 calls: 4,916 prompt and 91 output tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatPauses:
    """Mean seconds, each drawn from an exponential distribution, for the sources record none."""

    tool_s: float = 1.0
    user_s: float = 20.0


class _Function(msgspec.Struct, frozen=True):
    name: str
    arguments: str | dict[str, object]


class _ToolCall(msgspec.Struct, frozen=True):
    function: _Function


class _Message(msgspec.Struct, frozen=True):
    role: str
    content: str | None = None
    tool_calls: list[_ToolCall] | None = None

    @property
    def text(self) -> str:
        calls = [f"{call.function.name}{call.function.arguments}" for call in self.tool_calls or ()]
        return "".join([self.content or "", *calls])


class _Line(msgspec.Struct, frozen=True):
    messages: list[_Message]


class _TextBlocks:
    """Chained ids by text: a block is known by the block before it and by what it says."""

    def __init__(self, block_chars: float) -> None:
        self._block_chars = block_chars
        self._ids: dict[tuple[int, str], int] = {}

    def of(self, text: str) -> tuple[int, ...]:
        """The ids of the whole blocks."""
        found: list[int] = []
        parent = -1
        for block in range(int(len(text) / self._block_chars)):
            piece = text[int(block * self._block_chars) : int((block + 1) * self._block_chars)]
            parent = self._ids.setdefault((parent, piece), len(self._ids))
            found.append(parent)
        return tuple(found)


def chat_sessions(
    name: str, source: ChatFormat, pauses: ChatPauses, block_tokens: int, starts_s: Iterator[float], *, seed: int
) -> Iterator[Session]:
    """The conversations of a file, one a line; the n-th begins at the n-th of `starts_s`."""
    rng = np.random.default_rng((seed, 1))
    blocks = _TextBlocks(block_tokens * source.prompt_chars_per_token)
    with opened(Path(name)) as file:
        for (line, row), start_s in zip(json_lines(name, file, _Line), starts_s, strict=False):
            turns = tuple(_turns(row.messages, source, pauses, blocks, rng))
            if not turns:
                raise TraceError(f"{name}:{line}: no message of an assistant after another message")
            yield Session(id=f"{line}", start_s=start_s, turns=turns, block_tokens=block_tokens)


def _turns(
    messages: Sequence[_Message],
    source: ChatFormat,
    pauses: ChatPauses,
    blocks: _TextBlocks,
    rng: np.random.Generator,
) -> Iterator[Turn]:
    """One turn for every answer: its prompt is all that was said before."""
    prompt = ""
    for message, after in zip(messages, [*messages[1:], None], strict=True):
        if message.role == "assistant" and prompt:
            mean_s = pauses.user_s if after is not None and after.role == "user" else pauses.tool_s
            yield Turn(
                input_tokens=math.ceil(len(prompt) / source.prompt_chars_per_token),
                output_tokens=max(1, math.ceil(len(message.text) / source.output_chars_per_token)),
                hash_ids=blocks.of(prompt),
                think_s=float(rng.exponential(mean_s)) if after is not None else 0.0,
                is_visible=bool(message.content and message.content.strip()),
            )
        prompt += message.text
