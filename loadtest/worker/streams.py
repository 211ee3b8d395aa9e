"""A streamed answer, event by event as vLLM 0.32 writes it.

What is the same in every event of a sequence is made once; an ordinary token costs two concatenations. Tokens that
arrived together share one event, which is what vLLM does when a reader falls behind.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import msgspec

from loadtest.worker import tokenizer
from loadtest.worker.answers import FINGERPRINT, Envelope, Usage
from loadtest.worker.errors import ApiError
from loadtest.worker.forms import Piece
from loadtest.worker.generation import Delta, Plan
from loadtest.worker.logprobs import chat_logprobs, completion_logprobs
from loadtest.worker.requests import GenerationRequest

DONE = b"data: [DONE]\n\n"
_FINGERPRINT_FIELD = f',"system_fingerprint":"{FINGERPRINT}"'.encode()


class StreamWriter(ABC):
    """Writes one answer's events."""

    object_name: str

    def __init__(self, request: GenerationRequest, plans: Sequence[Plan], envelope: Envelope) -> None:
        self._request = request
        self._envelope = envelope
        self._prompt_tokens = sum(plan.prompt.tokens for plan in plans[:: request.choices])
        fields: dict[str, object] = {
            "id": envelope.response_id,
            "object": self.object_name,
            "created": envelope.created,
            "model": envelope.model,
        }
        self._head = b"data: " + msgspec.json.encode(fields)[:-1] + b',"choices":['
        told_more = request.continuous_usage or request.return_token_ids or request.logprobs is not None
        self._plain = not told_more and request.form is None
        self._unopened: Sequence[Plan] = plans
        self._frames = [self._frame(plan.index) for plan in plans]

    def begin(self) -> bytes:
        """What is said before the engine has begun: nothing."""
        return b""

    def failure(self, error: ApiError) -> bytes:
        """A failure after the stream began: the error as an event, then the end."""
        return b"data: " + error.body() + b"\n\n" + DONE

    def end(self, usage: Usage) -> bytes:
        """Usage, where the client asked for it, and the end of the stream."""
        if not self._request.include_usage:
            return DONE
        counts = usage.streamed(self._request, details=self._envelope.details)
        return self._event(b"", b',"usage":' + msgspec.json.encode(counts) + _FINGERPRINT_FIELD) + DONE

    def events(self, delta: Delta, *, last: bool) -> bytes:
        """The event of some tokens; `last` is set where no sequence has more to say."""
        if self._plain and delta.first and not delta.ended:
            prefix, suffix = self._frames[delta.plan.index]
            return prefix + delta.plan.text(delta.first, delta.count) + suffix
        if not self._tells(delta):
            return self._take_opening()
        tail = self._usage_so_far(delta.first + delta.count)
        if last and not self._request.include_usage:
            tail += _FINGERPRINT_FIELD
        return self._take_opening() + self._event(self._choice(delta), tail)

    def _tells(self, delta: Delta) -> bool:  # noqa: ARG002 - of a completion, every token is told
        """Whether these tokens have an event: not those that wrap a tool call."""
        return True

    @abstractmethod
    def _frame(self, index: int) -> tuple[bytes, bytes]:
        """What stands before and after the text of an ordinary token."""

    @abstractmethod
    def _choice(self, delta: Delta) -> bytes:
        """The one element of an event's `choices`."""

    @abstractmethod
    def _opening(self, plan: Plan) -> bytes:
        """A sequence's event before the first token of any; none unless the route has one."""

    def _take_opening(self) -> bytes:
        unopened, self._unopened = self._unopened, ()
        return b"".join(map(self._opening, unopened))

    def _event(self, choices: bytes, tail: bytes) -> bytes:
        return b"".join((self._head, choices, b"]", tail, b"}\n\n"))

    def _usage_so_far(self, made: int) -> bytes:
        if not self._request.continuous_usage:
            return b""
        total = self._prompt_tokens + made
        return (
            b',"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d,"completion_tokens_details":null}'
        ) % (self._prompt_tokens, total, made)

    def _token_ids(self, delta: Delta) -> list[int] | None:
        return delta.plan.token_ids(delta.first, delta.count) if self._request.return_token_ids else None

    def _prompt_ids(self, plan: Plan) -> list[int] | None:
        return tokenizer.encode(plan.prompt.data) if self._request.return_token_ids else None


class _ChatWriter(StreamWriter):
    object_name = "chat.completion.chunk"

    def _frame(self, index: int) -> tuple[bytes, bytes]:
        prefix = b'%b{"index":%d,"delta":{"content":"' % (self._head, index)
        return prefix, b'"},"logprobs":null,"finish_reason":null,"token_ids":null}]}\n\n'

    def _opening(self, plan: Plan) -> bytes:
        role = b'{"index":%d,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}'
        prompt_ids = msgspec.json.encode(self._prompt_ids(plan))
        tail = self._usage_so_far(0) + b',"prompt_token_ids":%b,"prompt_text":null' % prompt_ids
        return self._event(role % plan.index, tail)

    def _tells(self, delta: Delta) -> bool:
        return delta.ended or self._request.form is None or bool(delta.plan.piece(delta.first, delta.count))

    def _choice(self, delta: Delta) -> bytes:
        asked = self._request.logprobs
        token_ids = [] if asked is None else delta.plan.token_ids(delta.first, delta.count)
        choice: dict[str, object] = {
            "index": delta.plan.index,
            "delta": _chat_delta(delta.plan.piece(delta.first, delta.count)),
            "logprobs": None if asked is None else chat_logprobs(token_ids, asked),
            "finish_reason": delta.plan.told_reason if delta.ended else None,
        }
        if delta.ended:
            choice["stop_reason"] = None
        choice["token_ids"] = self._token_ids(delta)
        return msgspec.json.encode(choice)


class _CompletionWriter(StreamWriter):
    object_name = "text_completion"

    def _frame(self, index: int) -> tuple[bytes, bytes]:
        nulls = b'"logprobs":null,"finish_reason":null,"stop_reason":null,"prompt_token_ids":null,"token_ids":null'
        return b'%b{"index":%d,"text":"' % (self._head, index), b'",%b}]}\n\n' % nulls

    def _opening(self, plan: Plan) -> bytes:  # noqa: ARG002 - a completion has no role to announce
        return b""

    def _choice(self, delta: Delta) -> bytes:
        plan, echoed = delta.plan, b""
        if self._request.echo and not delta.first:
            echoed = plan.prompt.data
        text = tokenizer.text_of(echoed) + plan.text(delta.first, delta.count).decode()
        choice = {
            "index": plan.index,
            "text": text,
            "logprobs": self._logprobs(delta, echoed),
            "finish_reason": plan.finish_reason if delta.ended else None,
            "stop_reason": None,
            "prompt_token_ids": None if delta.first else self._prompt_ids(plan),
            "token_ids": self._token_ids(delta),
        }
        return msgspec.json.encode(choice)

    def _logprobs(self, delta: Delta, echoed: bytes) -> dict[str, object] | None:
        if self._request.logprobs is None:
            return None
        token_ids = tokenizer.encode(echoed) + delta.plan.token_ids(delta.first, delta.count)
        offset = len(delta.plan.text(0, delta.first))
        if self._request.echo and delta.first:
            offset += len(tokenizer.text_of(delta.plan.prompt.data))
        return completion_logprobs(token_ids, self._request.logprobs, offset=offset, starts_text=bool(echoed))


def stream_writer(request: GenerationRequest, plans: Sequence[Plan], envelope: Envelope) -> StreamWriter:
    """The writer for the route that the request came by."""
    return (_ChatWriter if request.chat else _CompletionWriter)(request, plans, envelope)


def _chat_delta(piece: Piece) -> dict[str, object]:
    if piece.opens is None and not piece.arguments:
        return {"content": piece.text.decode()} if piece.text else {}
    call: dict[str, object] = {}
    function: dict[str, object] = {}
    if piece.opens is not None:
        call |= {"id": piece.opens.call_id, "type": "function"}
        function["name"] = piece.opens.name
    if piece.arguments:
        function["arguments"] = piece.arguments.decode()
    return {"content": None, "tool_calls": [{**call, "index": 0, "function": function}]}
