"""A response as events: created, the item as it grows, completed. There is no `[DONE]`.

An ordinary token costs one formatting of its text and its place in the sequence.
"""

from collections.abc import Callable

import msgspec

from loadtest.worker.answers import Json, Usage
from loadtest.worker.dialects.base import named_event
from loadtest.worker.dialects.responses_items import call_item, call_item_id, message_id, message_item, text_part
from loadtest.worker.errors import ApiError
from loadtest.worker.forms import Piece, ToolCall
from loadtest.worker.generation import Delta, Plan

_DELTA = (
    b'event: response.output_text.delta\ndata: {"content_index":0,"delta":%%b,"item_id":"%b","logprobs":[],'
    b'"output_index":0,"sequence_number":%%d,"type":"response.output_text.delta"}\n\n'
)


class ResponsesWriter:
    """Writes one response's events.

    Args:
        plan: of the answer.
        begun: the response before its first word.
        completed: the whole one.
        ended: is told of the whole one, and of all its events.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        begun: Json,
        completed: Callable[[Usage], Json],
        ended: Callable[[Json, tuple[bytes, ...]], None],
    ) -> None:
        self._plan = plan
        self._begun = begun
        self._completed = completed
        self._ended = ended
        self._written: list[bytes] = []
        self._sequence = 0
        self._opened = False
        self._plain = plan.script is None
        # A call that is cut short is a message in a whole answer, but has begun as a call in a stream.
        self._call = None if plan.script is None else plan.script.call
        self._item_id = message_id(plan) if self._call is None else call_item_id(plan)
        self._delta = _DELTA % self._item_id.encode()
        self._arguments = b""

    def begin(self) -> bytes:
        """The response exists, and is being made."""
        kinds = ("response.created", "response.in_progress")
        return b"".join(self._event(kind, {"response": self._begun}) for kind in kinds)

    def events(self, delta: Delta, *, last: bool) -> bytes:  # noqa: ARG002 - `end` comes after the last
        """The item is added with its first words."""
        if self._plain and self._opened:
            text = delta.plan.text(delta.first, delta.count)
            return self._text(b'"%b"' % text) if text else b""
        piece = delta.plan.piece(delta.first, delta.count)
        return self._message(piece) if self._call is None else self._call_piece(self._call, piece)

    def end(self, usage: Usage) -> bytes:
        """The item is done, and so is the response."""
        done = b""
        if self._opened:
            done = self._message_done() if self._call is None else self._call_done(self._call)
        response = self._completed(usage)
        end = done + self._event("response.completed", {"response": response})
        self._ended(response, tuple(self._written))
        return end

    def failure(self, error: ApiError) -> bytes:
        """An event of its own; nothing follows it."""
        return self._event("error", {"code": str(error.status), "message": error.message, "param": error.param})

    def _event(self, kind: str, fields: Json) -> bytes:
        number, self._sequence = self._sequence, self._sequence + 1
        return self._write(named_event(kind, {**fields, "sequence_number": number, "type": kind}))

    def _text(self, quoted: bytes) -> bytes:
        number, self._sequence = self._sequence, self._sequence + 1
        return self._write(self._delta % (quoted, number))

    def _write(self, event: bytes) -> bytes:
        self._written.append(event)
        return event

    def _message(self, piece: Piece) -> bytes:
        opening = b""
        if not self._opened and piece.text:
            self._opened = True
            item = message_item(self._plan, [], status="in_progress")
            opening = self._event("response.output_item.added", {"item": item, "output_index": 0})
            part = text_part("") | {"logprobs": []}
            opening += self._event("response.content_part.added", {**self._place(), "part": part})
        return opening + (self._text(msgspec.json.encode(piece.text.decode())) if piece.text else b"")

    def _message_done(self) -> bytes:
        text = self._plan.text(0, self._plan.output_tokens).decode()
        part = text_part(text)
        item = message_item(self._plan, [part], status="completed")
        return (
            self._event("response.output_text.done", {**self._place(), "logprobs": [], "text": text})
            + self._event("response.content_part.done", {**self._place(), "part": part})
            + self._event("response.output_item.done", {"item": item, "output_index": 0})
        )

    def _call_piece(self, call: ToolCall, piece: Piece) -> bytes:
        events = b""
        if piece.opens is not None:
            self._opened = True
            item = call_item(self._plan, name=call.name, arguments="", status="in_progress")
            events += self._event("response.output_item.added", {"item": item, "output_index": 0})
        if piece.arguments:
            self._arguments += piece.arguments
            delta: Json = {"delta": piece.arguments.decode(), "item_id": self._item_id, "output_index": 0}
            events += self._event("response.function_call_arguments.delta", delta)
        return events

    def _call_done(self, call: ToolCall) -> bytes:
        arguments = self._arguments.decode()
        fields: Json = {"arguments": arguments, "item_id": self._item_id, "name": call.name, "output_index": 0}
        item = call_item(self._plan, name=call.name, arguments=arguments, status="completed")
        done = self._event("response.function_call_arguments.done", fields)
        return done + self._event("response.output_item.done", {"item": item, "output_index": 0})

    def _place(self) -> Json:
        return {"content_index": 0, "item_id": self._item_id, "output_index": 0}
