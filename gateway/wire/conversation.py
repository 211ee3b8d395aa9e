"""What a request says about the length of its answer.

The rule of this module: without an output-length model nothing is read. Text is looked at here and leaves as numbers;
what cannot be read is as if it were not there, for only the worker judges it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from gateway.core.output_length.carried import PromptReader
from gateway.core.output_length.facts import MAX_PREVIOUS_OUTPUTS, PromptFacts
from gateway.core.types import OutputFeatures
from gateway.wire.peeked import count
from gateway.wire.prompt_chain import Message, Part, read_part
from gateway.wire.prompts import Prompts

_TOOL_ROLES = frozenset({"tool", "function"})
_decode_parts = msgspec.json.Decoder(list[msgspec.Raw]).decode

Content = str | list[msgspec.Raw] | None


def conversation_features(
    reader: PromptReader | None,
    messages: Sequence[Message],
    *,
    model: str,
    prompt_bytes: int,
    tools: msgspec.Raw,
    choices: int = 1,
) -> OutputFeatures | None:
    """The features of a chat, in whatever dialect; None where none are wanted, or it asks for several answers.

    Args:
        reader: None without an output-length model.
        messages: all of them, oldest first.
        model: the language model.
        prompt_bytes: of all text of the prompt.
        tools: the raw list of tools, empty where there is none.
        choices: how many answers are asked for.
    """
    if reader is None or choices != 1 or not _is_final(model, reader):
        return None
    bytes_per_token = reader.bytes_per_token(model)
    question = next((message for message in reversed(messages) if not _is_answer(message)), None)
    past = _look_back(messages)
    return reader.features(
        PromptFacts(
            text="" if question is None else "\n".join(_texts(question.content)),
            prompt_tokens=prompt_bytes / bytes_per_token,
            model=model,
            tools=count(tools),
            tenant=reader.tenant,
            previous_outputs=tuple(max(1, round(size / bytes_per_token)) for size in past.answers_bytes),
            previous_prompt_tokens=(
                max(0, prompt_bytes - past.since_bytes) / bytes_per_token if past.answers_bytes else None
            ),
            after_tool=None if question is None else _is_tool_result(question),
        )
    )


def prompts_features(
    reader: PromptReader | None, prompts: Prompts, *, model: str, choices: int = 1
) -> OutputFeatures | None:
    """The features of one plain prompt, of whose token ids only the number counts; None for several prompts."""
    if reader is None or choices != 1 or len(prompts) != 1 or not _is_final(model, reader):
        return None
    (prompt,) = prompts
    text = prompt if isinstance(prompt, str) else ""
    tokens = _size(prompt) / reader.bytes_per_token(model) if isinstance(prompt, str) else float(len(prompt))
    return reader.features(PromptFacts(text=text, prompt_tokens=tokens, model=model, tenant=reader.tenant))


def _is_final(model: str, reader: PromptReader) -> bool:
    """Whether this is the name under which the request will be routed."""
    return bool(model) and model not in reader.renamed


@dataclass(frozen=True, slots=True, kw_only=True)
class _Past:
    """Sizes of a conversation, in bytes of text."""

    answers_bytes: tuple[int, ...]
    """Of the latest earlier answers, oldest first; messages of the model in a row are one answer."""
    since_bytes: int
    """From the beginning of the last answer to the end."""


def _look_back(messages: Sequence[Message]) -> _Past:
    """Walk from the end no further than is asked for."""
    answers: list[int] = []
    answer = since = 0
    for message in reversed(messages):
        if _is_answer(message):
            size = _answer_bytes(message)
            answer += size
            since += 0 if answers else size
            continue
        if answer:
            answers.append(answer)
            answer = 0
            if len(answers) == MAX_PREVIOUS_OUTPUTS:
                break
        if not answers:
            since += _content_bytes(message.content)
    if answer:
        answers.append(answer)
    return _Past(answers_bytes=tuple(reversed(answers)), since_bytes=since)


def _is_answer(message: Message) -> bool:
    """Whether the model wrote it; the Responses API's calls have no role."""
    return message.role == "assistant" or (not message.role and bool(message.tool_calls))


def _is_tool_result(message: Message) -> bool:
    if message.role in _TOOL_ROLES:
        return True
    if not isinstance(message.content, list):
        return False
    parts = map(read_part, message.content)
    return any(isinstance(part, Part) and part.type == "tool_result" for part in parts)


def _answer_bytes(message: Message) -> int:
    raw = (message.reasoning, message.reasoning_content, message.tool_calls, message.function_call)
    return _content_bytes(message.content) + sum(map(len, raw))


def _content_bytes(content: Content) -> int:
    calls = 0
    if isinstance(content, list):
        parts = map(read_part, content)
        calls = sum(len(part.input) for part in parts if isinstance(part, Part) and part.type == "tool_use")
    return calls + sum(map(_size, _texts(content)))


def _texts(content: Content) -> Iterator[str]:
    """The text of a message: its text parts, and those of the tools' results in it."""
    if isinstance(content, str):
        yield content
        return
    for raw in content or ():
        part = read_part(raw)
        text = part if isinstance(part, str) or part is None else part.written()
        if text is not None:
            yield text
        elif isinstance(part, Part) and part.type == "tool_result":
            yield from _result_texts(part.content)


def _result_texts(content: msgspec.Raw) -> Iterator[str]:
    try:
        parts = [content] if bytes(content).startswith(b'"') else _decode_parts(content)
    except (msgspec.DecodeError, RecursionError):
        return
    for raw in parts:
        part = read_part(raw)
        text = part if isinstance(part, str) or part is None else part.written()
        if text is not None:
            yield text


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())
