"""Answers that must have a form: JSON of a schema, or a call of a tool.

A form is what a request asks for, a script what one answer will say: its whole text is known before the engine has
begun. A tool call is written as Hermes models write it, and told to the client without its wrapping; one that was
cut short is told as the raw text, as in vLLM's whole answers.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace

from loadtest.worker import filler, json_filler
from loadtest.worker.tokenizer import TOKEN_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """The tool call in a script, by the places in its text."""

    call_id: str
    name: str
    named: bool
    """The client named the tool: vLLM then ends with `stop`, not with `tool_calls`."""
    name_end: int
    """From here on the tool is known."""
    arguments_start: int
    arguments_end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """What some output tokens add to an answer."""

    text: bytes = b""
    opens: ToolCall | None = None
    """The call whose tool became known."""
    arguments: bytes = b""

    def __bool__(self) -> bool:
        return bool(self.text or self.opens or self.arguments)


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """The text of one answer, in ASCII."""

    text: bytes
    call: ToolCall | None = None

    def lasting(self, tokens: int) -> "Script":
        """The same, with blanks after it to fill so many tokens."""
        return replace(self, text=self.text.ljust(tokens * TOKEN_BYTES))

    def words(self, first: int, end: int) -> bytes:
        """The text of the tokens from `first` to `end - 1`."""
        return self.text[first * TOKEN_BYTES : end * TOKEN_BYTES]

    def piece(self, first: int, end: int) -> Piece:
        """What these tokens add to a tool call."""
        call = self.call
        assert call is not None
        start, stop = first * TOKEN_BYTES, end * TOKEN_BYTES
        arguments = self.text[max(start, call.arguments_start) : min(stop, call.arguments_end)]
        return Piece(opens=call if start < call.name_end <= stop else None, arguments=arguments)

    @property
    def arguments(self) -> str:
        """The tool call's arguments as JSON; only for a script with a call."""
        assert self.call is not None
        return self.text[self.call.arguments_start : self.call.arguments_end].decode()


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerForm:
    """What an answer must look like."""

    schema: Mapping[str, object]
    tool: str | None = None
    """The tool that must be called; None: the answer itself is JSON."""
    named: bool = False

    def script(self, key: int, *, limit_tokens: int) -> Script:
        """The answer of this key: as long as a free one would be, and whole within `limit_tokens` where it can be."""
        tokens = min(filler.natural_length(key), limit_tokens - 1) - 1
        if self.tool is None:
            text = json_filler.document(self.schema, key, characters=tokens * TOKEN_BYTES)
            return Script(text=text.encode())
        name = '<tool_call>\n{"name": ' + json.dumps(self.tool)
        head, tail = name + ', "arguments": ', "}\n</tool_call>"
        room = tokens * TOKEN_BYTES - len(head) - len(tail)
        arguments = json_filler.document(self.schema, key, characters=room)
        call = ToolCall(
            call_id=f"chatcmpl-tool-{key:016x}",
            name=self.tool,
            named=self.named,
            name_end=len(name),
            arguments_start=len(head),
            arguments_end=len(head) + len(arguments),
        )
        return Script(text=(head + arguments + tail).encode(), call=call)
