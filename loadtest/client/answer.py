"""Reads one streamed answer for its times and counts.

The rule of this module: pure bookkeeping. Bytes come in with the time at which they were read; what a token
cost, what the usage says and how the stream ended come out.
"""

from dataclasses import dataclass, field

import msgspec
import numpy as np

from loadtest.client.sse import SseSplitter

DONE = b"[DONE]"
MAX_DETAIL_CHARS = 200
"""Of an error's message, as much is kept."""


class _Delta(msgspec.Struct, frozen=True):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[object] | None = None

    @property
    def has_content(self) -> bool:
        return bool(self.content or self.reasoning_content or self.reasoning or self.tool_calls)


class _Choice(msgspec.Struct, frozen=True):
    delta: _Delta | None = None
    text: str | None = None
    finish_reason: str | None = None

    @property
    def has_content(self) -> bool:
        return bool(self.text) or (self.delta is not None and self.delta.has_content)


class _PromptDetails(msgspec.Struct, frozen=True):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int
    completion_tokens: int = 0
    prompt_tokens_details: _PromptDetails | None = None


class _Event(msgspec.Struct, frozen=True):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: object = None
    message: str | None = None
    """vLLM's own errors have their message at the top: `{"object": "error", "message": ...}`."""


_EVENT = msgspec.json.Decoder(_Event)


def error_message(body: bytes) -> str:
    """The message of an OpenAI or vLLM error body, else the start of the body itself."""
    try:
        event = _EVENT.decode(body)
    except msgspec.MsgspecError:
        event = _Event()
    text = event.error.get("message") if isinstance(event.error, dict) else event.message
    return str(text or body.decode("utf-8", "replace")).strip()[:MAX_DETAIL_CHARS]


@dataclass(slots=True, kw_only=True)
class Answer:
    """One answer as it comes in; times are those that `feed` was given."""

    first_content_s: float | None = None
    last_content_s: float | None = None
    gaps_s: list[float] = field(default_factory=list)
    """Between events with content; events of one read have a gap of zero."""
    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    finished: bool = False
    """A finish reason came."""
    done: bool = False
    """The stream's own end mark came."""
    error: str | None = None
    _splitter: SseSplitter = field(default_factory=SseSplitter)

    def feed(self, chunk: bytes, now_s: float) -> None:
        """Takes bytes of the body as read at `now_s`; raises ValueError where they are no OpenAI stream."""
        for data in self._splitter.feed(chunk):
            if data == DONE:
                self.done = True
            else:
                self._take(data, now_s)

    @property
    def complete(self) -> bool:
        """Whether the answer came to its proper end."""
        return self.error is None and (self.done or self.finished)

    @property
    def tpot_s(self) -> float | None:
        """Time per output token after the first; None under two tokens or without usage."""
        if self.first_content_s is None or self.last_content_s is None or (self.output_tokens or 0) < 2:
            return None
        assert self.output_tokens is not None
        return (self.last_content_s - self.first_content_s) / (self.output_tokens - 1)

    @property
    def itl_p99_s(self) -> float | None:
        """The gap that 99 % of this answer's gaps do not exceed."""
        return float(np.percentile(self.gaps_s, 99)) if self.gaps_s else None

    def _take(self, data: bytes, now_s: float) -> None:
        event = _EVENT.decode(data)
        if event.error is not None:
            self.error = error_message(data)
        if any(choice.has_content for choice in event.choices):
            self._note_content(now_s)
        if any(choice.finish_reason for choice in event.choices):
            self.finished = True
        if event.usage is not None:
            self._note_usage(event.usage)

    def _note_content(self, now_s: float) -> None:
        if self.last_content_s is None:
            self.first_content_s = now_s
        else:
            self.gaps_s.append(now_s - self.last_content_s)
        self.last_content_s = now_s

    def _note_usage(self, usage: _Usage) -> None:
        self.input_tokens = usage.prompt_tokens
        self.output_tokens = usage.completion_tokens
        if usage.prompt_tokens_details is not None:
            self.cached_tokens = usage.prompt_tokens_details.cached_tokens
