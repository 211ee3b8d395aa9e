"""Agent sessions as rows: one per call, with what the gateway would remember of the calls before it.

The rule of this module: a call sees only calls that ended before it, and only those of its own conversation: where a
session interleaves two speakers, a call continues the one whose last prompt it shares the longest beginning with.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import msgspec

from gateway.core.output_length.facts import PromptFacts
from policy_store.learn.continued import CONTINUES_RATIO, common_prefix
from policy_store.learn.output_length.rows import LengthRow, estimated_tokens, row_of


@dataclass(slots=True)
class _Conversation:
    """What is remembered of one."""

    outputs: list[int] = field(default_factory=list)
    prompt_tokens: float | None = None
    prompt: str = ""

    def answered(self, prompt_tokens: float, output_tokens: int) -> None:
        self.prompt_tokens = prompt_tokens
        if output_tokens > 0:
            self.outputs.append(output_tokens)


class _Call(msgspec.Struct, frozen=True):
    t: float
    keep: int
    add: str
    out_tok: int


class _TextSession(msgspec.Struct, frozen=True):
    session: str
    calls: list[_Call]


def text_session(model: str) -> Callable[[bytes], Iterator[LengthRow]]:
    """Reader of LMCache's agent traces; the language model behind them is not recorded, so the agent stands for it."""

    def read(line: bytes) -> Iterator[LengthRow]:
        entry = msgspec.json.decode(line, type=_TextSession)
        conversations: list[_Conversation] = []
        prompt = ""
        for call in entry.calls:
            prompt = prompt[: call.keep] + call.add
            talk, shared = _continued(conversations, prompt)
            tokens = estimated_tokens(prompt)
            facts = PromptFacts(
                text=prompt[shared:].strip(),
                prompt_tokens=tokens,
                model=model,
                previous_outputs=tuple(talk.outputs),
                previous_prompt_tokens=talk.prompt_tokens,
            )
            # A call of no tokens is one whose answer was not recorded.
            if call.out_tok > 0:
                yield row_of(facts, call.out_tok, entry.session)
            talk.prompt = prompt
            talk.answered(tokens, call.out_tok)

    return read


def _continued(conversations: list[_Conversation], prompt: str) -> tuple[_Conversation, int]:
    """The conversation that a prompt goes on with, and how many leading characters it has of it."""
    best, shared = None, 0
    for talk in conversations:
        length = common_prefix(talk.prompt, prompt)
        if length > shared and length >= CONTINUES_RATIO * len(talk.prompt):
            best, shared = talk, length
    if best is None:
        best = _Conversation()
        conversations.append(best)
    return best, shared


class _Message(msgspec.Struct, frozen=True):
    role: str
    content: str | None = None
    tool_calls: list[dict[str, object]] | None = None

    @property
    def text(self) -> str:
        calls = "" if not self.tool_calls else msgspec.json.encode(self.tool_calls).decode()
        return (self.content or "") + calls


class _Chat(msgspec.Struct, frozen=True):
    task_id: int
    messages: list[_Message]


def airline(line: bytes) -> Iterator[LengthRow]:
    """Reader of tau-bench's airline sessions (gpt-4o); all trials of a task are one group.

    The file has no token counts: an answer's tokens are its bytes over four, tool calls included.
    """
    entry = msgspec.json.decode(line, type=_Chat)
    talk = _Conversation()
    tokens = 0.0
    last: _Message | None = None
    for message in entry.messages:
        length = estimated_tokens(message.text)
        if message.role == "assistant" and last is not None:
            facts = PromptFacts(
                text=last.text,
                prompt_tokens=tokens,
                model="gpt-4o",
                previous_outputs=tuple(talk.outputs),
                previous_prompt_tokens=talk.prompt_tokens,
                after_tool=last.role == "tool",
            )
            yield row_of(facts, max(1, round(length)), f"task-{entry.task_id}")
            talk.answered(tokens, max(1, round(length)))
        tokens += length
        last = message


class _Request(msgspec.Struct, frozen=True):
    type: str
    model: str | None = None
    input_tokens: int = msgspec.field(name="in", default=0)
    output_tokens: int = msgspec.field(name="out", default=0)
    input_types: list[str] = []
    requests: list["_Request"] = []


class _ClaudeSession(msgspec.Struct, frozen=True):
    id: str
    requests: list[_Request]


def claude_code(line: bytes) -> Iterator[LengthRow]:
    """Reader of Claude Code sessions (kv-cache-tester's format); they have no text, so lengths are as recorded.

    Its pauses are not used: they rank the answer that follows too well to be only what went before it (see the guide).
    """
    entry = msgspec.json.decode(line, type=_ClaudeSession)
    yield from _claude_calls(entry.requests, entry.id)


def _claude_calls(requests: list[_Request], group: str) -> Iterator[LengthRow]:
    talk = _Conversation()
    for request in requests:
        if request.requests:
            # A sub-agent is a conversation of its own, inside its caller's group.
            yield from _claude_calls(request.requests, group)
            continue
        if request.model is None or request.output_tokens <= 0:
            continue
        facts = PromptFacts(
            text="",
            prompt_tokens=float(request.input_tokens),
            model=request.model,
            previous_outputs=tuple(talk.outputs),
            previous_prompt_tokens=talk.prompt_tokens,
            after_tool="tool_result" in request.input_types,
        )
        yield row_of(facts, request.output_tokens, group)
        talk.answered(facts.prompt_tokens, request.output_tokens)
