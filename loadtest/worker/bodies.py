"""The JSON bodies that a client sends, and what is said when one does not fit.

Fields that change nothing here (temperature beyond its check, penalties, stop strings) are read over.
Numbers in strings are taken as numbers, as pydantic does in vLLM.
"""

import json
import re
from typing import Any, TypeVar

from msgspec import DecodeError, Raw, Struct, ValidationError
from msgspec.json import Decoder

from loadtest.worker.errors import ApiError

Body = TypeVar("Body")


class StreamOptions(Struct, frozen=True):
    """What a stream tells beside the text; naming the object at all asks for usage, as in vLLM."""

    include_usage: bool | None = True
    continuous_usage_stats: bool | None = False


class KvTransferParams(Struct, frozen=True):
    """The part of a NIXL hand-over that this worker reads; see `loadtest.worker.pd`."""

    do_remote_decode: bool | None = False
    do_remote_prefill: bool | None = False
    remote_block_ids: Any = None
    remote_engine_id: str | None = None
    remote_request_id: str | None = None
    remote_host: str | None = None
    remote_port: int | None = None


class ContentPart(Struct, frozen=True):
    """One part of a message's content."""

    type: str
    text: str | None = None


class Message(Struct, frozen=True):
    """One message of a conversation."""

    role: str
    content: str | list[ContentPart] | None = None
    tool_calls: Raw = Raw()

    def text(self) -> str:
        """What the chat template shows of it: its text parts, then its tool calls as JSON."""
        tool_calls = "" if is_null(self.tool_calls) else bytes(self.tool_calls).decode()
        return _content_text(self.content) + tool_calls


class _Generation(Struct, frozen=True, kw_only=True):
    model: str | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    n: int | None = 1
    min_tokens: int | None = 0
    ignore_eos: bool | None = False
    seed: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    prompt_logprobs: int | None = None
    return_token_ids: bool | None = None
    cache_salt: str | None = None
    kv_transfer_params: KvTransferParams | None = None


class FunctionName(Struct, frozen=True):
    """The function in a `tool_choice`."""

    name: str


class NamedTool(Struct, frozen=True):
    """A `tool_choice` that names the tool."""

    function: FunctionName


class FunctionDefinition(Struct, frozen=True):
    """A function that the model may call; `parameters` is a JSON schema."""

    name: str
    parameters: dict[str, Any] | None = None


class Tool(Struct, frozen=True):
    """One of a request's `tools`."""

    function: FunctionDefinition


class JsonSchema(Struct, frozen=True, rename={"body": "schema"}):
    """The schema of a `response_format`."""

    body: dict[str, Any] | None = None


class ResponseFormat(Struct, frozen=True):
    """`text`, `json_object` or `json_schema`."""

    type: str
    json_schema: JsonSchema | None = None


class ChatBody(_Generation, frozen=True, kw_only=True):
    """POST /v1/chat/completions."""

    messages: list[Message]
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    logprobs: bool | None = False
    top_logprobs: int | None = 0
    tools: Raw = Raw()
    tool_choice: str | NamedTool | None = None
    response_format: ResponseFormat | None = None
    add_generation_prompt: bool | None = True


class CompletionBody(_Generation, frozen=True, kw_only=True):
    """POST /v1/completions."""

    prompt: str | list[str | int | list[int]] | None = None
    max_tokens: int | None = 16
    logprobs: int | None = None
    echo: bool | None = False


class TokenizeBody(Struct, frozen=True, kw_only=True):
    """POST /tokenize, of a prompt or of a conversation."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = None
    tools: Raw = Raw()
    add_generation_prompt: bool | None = True
    return_token_strs: bool | None = False


class DetokenizeBody(Struct, frozen=True, kw_only=True):
    """POST /detokenize."""

    tokens: list[int]
    model: str | None = None


class KvClaimBody(Struct, frozen=True, kw_only=True):
    """POST /emulator/kv_claim: a decode worker asks for a prefill leg's KV."""

    request_id: str
    engine_id: str


class KvReleaseBody(Struct, frozen=True, kw_only=True):
    """POST /emulator/kv_release: the KV has been read, its blocks may go."""

    request_id: str


CHAT = Decoder(ChatBody, strict=False)
COMPLETION = Decoder(CompletionBody, strict=False)
TOOLS = Decoder(list[Tool])
TOKENIZE = Decoder(TokenizeBody, strict=False)
DETOKENIZE = Decoder(DetokenizeBody, strict=False)
KV_CLAIM = Decoder(KvClaimBody)
KV_RELEASE = Decoder(KvReleaseBody)


def decode(decoder: Decoder[Body], raw: bytes) -> Body:
    """The body as its type; raises ApiError with status 400 for what is not JSON or does not fit."""
    try:
        return decoder.decode(raw)
    except ValidationError as error:
        raise _misfit(str(error), raw) from None
    except DecodeError as error:
        raise _malformed(str(error), raw) from None


def is_null(raw: Raw) -> bool:
    """Whether a raw field was left out or null."""
    return bytes(raw) in {b"", b"null"}


def _content_text(content: str | list[ContentPart] | None) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    for part in content:
        if part.text is None:
            kind = part.type.removesuffix("_url").removeprefix("input_")
            raise ApiError.bad_request(f"At most 0 {kind}(s) may be provided in one prompt.")
    return "".join(part.text or "" for part in content)


def _malformed(message: str, raw: bytes) -> ApiError:
    """FastAPI names the byte; the standard parser knows it, in the same words."""
    position = 0
    try:
        json.loads(raw)
    except json.JSONDecodeError as error:
        message, position = error.msg, error.pos
    except UnicodeDecodeError as error:
        position = error.start
    return ApiError.schema(
        kind="json_invalid",
        loc=f"body.{position}",
        message="JSON decode error",
        shown="<dict of 0 items>",
        detail=f", 'ctx': {{'error': '{message}'}}",
    )


def _misfit(message: str, raw: bytes) -> ApiError:
    what, _, path = message.partition(" - at `$")
    loc = "body" + re.sub(r"\[([^]]*)\]", r".\1", path.rstrip("`"))
    document = json.loads(raw)
    shown = f"<dict of {len(document)} items>" if isinstance(document, dict) else f"<{type(document).__name__}>"
    missing = re.fullmatch(r"Object missing required field `(.+)`", what)
    if missing is not None:
        return ApiError.schema(kind="missing", loc=f"{loc}.{missing[1]}", message="Field required", shown=shown)
    return ApiError.schema(kind="type_error", loc=loc, message=what, shown=shown)
