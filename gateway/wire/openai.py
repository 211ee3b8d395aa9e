"""Reading what the gateway needs from an OpenAI request, and nothing more.

The rule of this module: the body is only read; what goes to the worker is the client's own bytes. A request is
refused here only where it cannot be routed; unknown fields and doubtful values are the worker's to judge. `peek`
never raises: bad input is an `ApiError`.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import msgspec

from gateway.core.types import Endpoint, RequestFacts, RequestId
from gateway.wire.errors import ApiError, bad_request
from gateway.wire.prompt_chain import Message, PromptChain, chat_chain, root_seed, text_chain, token_chain
from gateway.wire.slo_headers import Hints, read_hints

_ABSENT = msgspec.Raw()
_MAX_COUNT = 2**63 - 1  # so that every reader of the facts may take a count for a 64-bit integer
_Positive = Annotated[int, msgspec.Meta(ge=1, le=_MAX_COUNT)]
_Natural = Annotated[int, msgspec.Meta(ge=0, le=_MAX_COUNT)]
_TokenId = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]

DEFAULT_COMPLETION_TOKENS = 16
"""The output limit of /v1/completions where the client names none (OpenAI's, vLLM's and SGLang's default)."""

Prompts = list[str] | list[list[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Peeked:
    """What one look at a request gave."""

    facts: RequestFacts
    stream: bool
    include_usage: bool
    """The client asked for the usage chunk at the end of the stream."""
    raw_model: str
    """The model as the client wrote it, before any alias."""
    sent_kv_transfer_params: bool = False
    """The client set `kv_transfer_params` itself: forged or stale ones can yield another prompt's answer
    (vllm#52234), so they must not reach a worker."""


class _Request(msgspec.Struct, kw_only=True):
    """Fields that both endpoints have; those that the gateway does not judge stay raw."""

    model: str
    stream: bool | None = None
    stream_options: msgspec.Raw = _ABSENT
    n: _Positive | None = None
    cache_salt: msgspec.Raw = _ABSENT
    echo: msgspec.Raw = _ABSENT
    logprobs: msgspec.Raw = _ABSENT
    prompt_logprobs: msgspec.Raw = _ABSENT
    kv_transfer_params: msgspec.Raw = _ABSENT


class _Chat(_Request, kw_only=True):
    messages: Annotated[list[Message], msgspec.Meta(min_length=1)]
    max_tokens: _Positive | None = None
    max_completion_tokens: _Positive | None = None
    tools: msgspec.Raw = _ABSENT
    documents: msgspec.Raw = _ABSENT
    chat_template: msgspec.Raw = _ABSENT


class _Completion(_Request, kw_only=True):
    prompt: msgspec.Raw = _ABSENT
    prompt_embeds: msgspec.Raw = _ABSENT
    max_tokens: _Natural | None = DEFAULT_COMPLETION_TOKENS
    best_of: _Positive | None = None


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


_decode_chat = msgspec.json.Decoder(_Chat).decode
_decode_completion = msgspec.json.Decoder(_Completion).decode
_decode_stream_options = msgspec.json.Decoder(_StreamOptions).decode
_decode_text = msgspec.json.Decoder(str).decode
_decode_texts = msgspec.json.Decoder(list[str]).decode
_decode_ids = msgspec.json.Decoder(list[_TokenId]).decode
_decode_id_lists = msgspec.json.Decoder(list[list[_TokenId]]).decode


def peek(
    body: bytes,
    endpoint: Endpoint,
    *,
    request_id: RequestId,
    headers: Sequence[tuple[bytes, bytes]] = (),
    block_bytes: int = 256,
    session_headers: tuple[str, ...] = ("x-session-id",),
) -> Peeked | ApiError:
    """Read one request.

    Args:
        body: the bytes as the client sent them.
        endpoint: the route they came in by.
        request_id: goes into the facts.
        headers: the request's, names in lower case (as ASGI has them).
        block_bytes: bytes of prompt per block hash, a multiple of 4.
        session_headers: names that may carry the conversation's identity, the first present one counts.
    """
    hints = read_hints(headers, session_headers=session_headers)
    if isinstance(hints, ApiError):
        return hints
    if not body or body.isspace():
        return bad_request("The request body is empty; expected a JSON object.")
    read = _read_chat if endpoint is Endpoint.CHAT else _read_completion
    try:
        # Fields that are skipped are not validated by the decoder, but editing and the worker would stumble on them.
        body.decode()
        return read(body, request_id, hints, block_bytes)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return _unreadable(error, body)


def _read_chat(body: bytes, request_id: RequestId, hints: Hints, block_bytes: int) -> Peeked | ApiError:
    chat = _decode_chat(body)
    chain = chat_chain(
        chat.messages,
        seed=root_seed(chat.model, endpoint=Endpoint.CHAT, cache_salt=chat.cache_salt),
        preamble=(chat.chat_template, chat.documents, chat.tools),
        block_bytes=block_bytes,
    )
    facts = RequestFacts(
        request_id=request_id,
        endpoint=Endpoint.CHAT,
        model=chat.model,
        stream=bool(chat.stream),
        prompt_bytes=chain.text_bytes,
        block_bytes=block_bytes,
        block_chains=(chain.hashes,),
        media_parts=chain.media_parts,
        max_output_tokens=chat.max_completion_tokens or chat.max_tokens,
        choices=chat.n or 1,
        prompt_logprobs=_is_set(chat.prompt_logprobs),
        # vLLM turns a chat's `echo` into prompt_logprobs = top_logprobs, whose default is 0 and not null.
        echo_logprobs=_is_on(chat.echo),
        session=hints.session,
        slo_class=hints.slo_class,
        slo_ttft_s=hints.slo_ttft_s,
        slo_tpot_s=hints.slo_tpot_s,
    )
    return _peeked(chat, facts)


def _read_completion(body: bytes, request_id: RequestId, hints: Hints, block_bytes: int) -> Peeked | ApiError:
    completion = _decode_completion(body)
    echo = _is_on(completion.echo)
    if completion.max_tokens == 0 and not echo:
        return bad_request("Invalid 'max_tokens': 0 is only allowed with 'echo'.", param="max_tokens")
    prompts = _read_prompts(completion)
    if isinstance(prompts, ApiError):
        return prompts
    seed = root_seed(completion.model, endpoint=Endpoint.COMPLETIONS, cache_salt=completion.cache_salt)
    chains = [_prompt_chain(prompt, seed, block_bytes) for prompt in prompts]
    embeds = _count(completion.prompt_embeds)
    facts = RequestFacts(
        request_id=request_id,
        endpoint=Endpoint.COMPLETIONS,
        model=completion.model,
        stream=bool(completion.stream),
        prompt_bytes=sum(chain.text_bytes for chain in chains),
        prompt_token_ids=_token_count(prompts),
        block_bytes=block_bytes,
        block_chains=tuple(chain.hashes for chain in chains),
        prompts=len(prompts) + embeds,
        media_parts=embeds,
        # The engine still makes one token, and drops it, for an echo without generation.
        max_output_tokens=None if completion.max_tokens is None else max(1, completion.max_tokens),
        choices=max(completion.n or 1, completion.best_of or 1),
        prompt_logprobs=_is_set(completion.prompt_logprobs),
        echo_logprobs=echo and _is_set(completion.logprobs),
        session=hints.session,
        slo_class=hints.slo_class,
        slo_ttft_s=hints.slo_ttft_s,
        slo_tpot_s=hints.slo_tpot_s,
    )
    return _peeked(completion, facts)


def _peeked(request: _Request, facts: RequestFacts) -> Peeked:
    return Peeked(
        facts=facts,
        stream=facts.stream,
        include_usage=_wants_usage(request.stream_options),
        raw_model=request.model,
        sent_kv_transfer_params=_is_set(request.kv_transfer_params),
    )


def _wants_usage(stream_options: msgspec.Raw) -> bool:
    if not stream_options:
        return False
    try:
        return _decode_stream_options(stream_options).include_usage is True
    except msgspec.DecodeError:
        return False


# --- prompts of /v1/completions ------------------------------------------------------------------------------------


def _read_prompts(completion: _Completion) -> Prompts | ApiError:
    """The prompts in any of their four shapes: text, texts, token ids, lists of token ids."""
    raw = bytes(completion.prompt)
    if raw in (b"", b"null"):
        if _is_set(completion.prompt_embeds):
            return []
        return bad_request("Missing required parameter: 'prompt'.", param="prompt")
    try:
        return _decode_prompts(raw)
    except msgspec.ValidationError as error:
        return _wrong_shape(error, root="prompt")


def _decode_prompts(raw: bytes) -> Prompts | ApiError:
    if raw.startswith(b'"'):
        return [_decode_text(raw)]
    if not raw.startswith(b"["):
        return bad_request(
            "Invalid 'prompt': expected a string, a list of strings, a list of token ids "
            "or a list of lists of token ids.",
            param="prompt",
        )
    first = raw[1:].lstrip()[:1]
    if first == b"]":
        return bad_request("Invalid 'prompt': the list is empty.", param="prompt")
    if first == b'"':
        return _decode_texts(raw)
    if first == b"[":
        return _decode_id_lists(raw)
    return [_decode_ids(raw)]


def _prompt_chain(prompt: str | list[int], seed: int, block_bytes: int) -> PromptChain:
    if isinstance(prompt, str):
        return text_chain(prompt, seed=seed, block_bytes=block_bytes)
    return token_chain(prompt, seed=seed, block_bytes=block_bytes)


def _token_count(prompts: Prompts) -> int | None:
    if not prompts or isinstance(prompts[0], str):
        return None
    return sum(len(prompt) for prompt in prompts)


# --- raw JSON values -----------------------------------------------------------------------------------------------


def _is_set(raw: msgspec.Raw) -> bool:
    """True unless the field is absent or null."""
    return bytes(raw) not in (b"", b"null")


def _is_on(raw: msgspec.Raw) -> bool:
    """True unless a flag is absent, null or false; anything else might be taken for true by a worker."""
    return bytes(raw) not in (b"", b"null", b"false")


def _count(raw: msgspec.Raw) -> int:
    """How many items a field brings that may be one value or a list."""
    if not _is_set(raw):
        return 0
    if not bytes(raw).startswith(b"["):
        return 1
    return len(msgspec.json.decode(raw, type=list[msgspec.Raw]))


# --- refusals ------------------------------------------------------------------------------------------------------

_AT = re.compile(r" - at `(?:key in )?\$\.?(.*)`$")
_MISSING = re.compile(r"missing required field `(.*)`")


def _unreadable(error: Exception, body: bytes) -> ApiError:
    if isinstance(error, msgspec.ValidationError):
        return _wrong_shape(error)
    if isinstance(error, RecursionError):
        return bad_request("The request body is nested too deeply.")
    return _not_json(error, body)


def _wrong_shape(error: msgspec.ValidationError, *, root: str = "") -> ApiError:
    """Valid JSON with a value of the wrong type, named by its path."""
    text = str(error)
    where = _AT.search(text)
    path = root + (where.group(1) if where else "")
    missing = _MISSING.search(text)
    if missing:
        path = f"{path}.{missing.group(1)}".lstrip(".")
        return bad_request(f"Missing required parameter: '{path}'.", param=path)
    what = _AT.sub("", text)
    what = what[:1].lower() + what[1:]
    if not path:
        return bad_request(f"The request body must be a JSON object: {what}.")
    return bad_request(f"Invalid '{path}': {what}.", param=path)


def _not_json(error: Exception, body: bytes) -> ApiError:
    text = str(error).removeprefix("JSON is malformed: ")
    if isinstance(error, UnicodeDecodeError):
        text = f"invalid UTF-8 (byte {error.start})"
    elif text == "Input data was truncated":
        # The decoder says the same of a lone \ud83d, which JSON text cannot hold either.
        text = f"it ends too early (byte {len(body)}), or holds half of a surrogate pair"
    return bad_request(f"The request body is not valid JSON: {text}.")
