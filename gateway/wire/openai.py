"""Reading what the gateway needs from an OpenAI request, and nothing more.

The rule of this module: the body is only read; what goes to the worker is the client's own bytes. A request is
refused here only where it cannot be routed; unknown fields and doubtful values are the worker's to judge. `peek`
never raises: bad input is an `ApiError`.
"""

from typing import Annotated

import msgspec

from gateway.core.output_length.carried import PromptReader
from gateway.core.types import Endpoint, RequestFacts, RequestId
from gateway.wire.conversation import conversation_features, prompts_features
from gateway.wire.conversation_names import ConversationReader, Fields
from gateway.wire.errors import ApiError, bad_request
from gateway.wire.peeked import (
    DEFAULT_BLOCK_BYTES,
    MAX_COUNT,
    Arrival,
    Headers,
    Peeked,
    Prompt,
    count,
    facts_of,
    is_on,
    is_set,
    look,
    wrong_shape,
)
from gateway.wire.prompt_chain import Message, chat_chain, root_seed
from gateway.wire.prompts import Prompts, decode_prompts, prompt_chains, token_count

__all__ = ["DEFAULT_COMPLETION_TOKENS", "Peeked", "peek"]

_ABSENT = msgspec.Raw()
_Positive = Annotated[int, msgspec.Meta(ge=1, le=MAX_COUNT)]
_Natural = Annotated[int, msgspec.Meta(ge=0, le=MAX_COUNT)]

DEFAULT_COMPLETION_TOKENS = 16
"""The output limit of /v1/completions where the client names none (OpenAI's, vLLM's and SGLang's default)."""


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
    prompt_cache_key: msgspec.Raw = _ABSENT
    user: msgspec.Raw = _ABSENT

    def conversation_fields(self) -> Fields:
        """Those that may name a conversation."""
        return {"prompt_cache_key": self.prompt_cache_key, "user": self.user}


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


def peek(
    body: bytes,
    endpoint: Endpoint,
    *,
    request_id: RequestId,
    headers: Headers = (),
    block_bytes: int = DEFAULT_BLOCK_BYTES,
    reader: PromptReader | None = None,
    conversation: ConversationReader | None = None,
) -> Peeked | ApiError:
    """Read one request.

    Args:
        body: the bytes as the client sent them.
        endpoint: the route they came in by.
        request_id: goes into the facts.
        headers: the request's, names in lower case (as ASGI has them).
        block_bytes: bytes of prompt per block hash, a multiple of 4.
        reader: makes the features of output-length prediction; None where there is no model for that.
        conversation: reads which conversation it is a turn of; None where nobody asks, and then nothing is read.
    """
    read = _read_chat if endpoint is Endpoint.CHAT else _read_completion
    return look(
        body,
        read,
        request_id=request_id,
        headers=headers,
        block_bytes=block_bytes,
        reader=reader,
        conversation=conversation,
    )


def _read_chat(body: bytes, arrival: Arrival) -> Peeked | ApiError:
    chat = _decode_chat(body)
    chain = chat_chain(
        chat.messages,
        seed=root_seed(chat.model, endpoint=Endpoint.CHAT, cache_salt=chat.cache_salt),
        preamble=(chat.chat_template, chat.documents, chat.tools),
        block_bytes=arrival.block_bytes,
        with_turns=arrival.conversation is not None,
    )
    choices = chat.n or 1
    facts = facts_of(
        arrival,
        Endpoint.CHAT,
        chat.model,
        chain.as_prompt(),
        stream=bool(chat.stream),
        max_output_tokens=chat.max_completion_tokens or chat.max_tokens,
        choices=choices,
        prompt_logprobs=is_set(chat.prompt_logprobs),
        # vLLM turns a chat's `echo` into prompt_logprobs = top_logprobs, whose default is 0 and not null.
        echo_logprobs=is_on(chat.echo),
        conversation=arrival.conversation_facts(
            chat.conversation_fields(), turns=chain.turns, history_blocks=chain.history_blocks
        ),
        output_features=conversation_features(
            arrival.reader,
            chat.messages,
            model=chat.model,
            prompt_bytes=chain.text_bytes,
            tools=chat.tools,
            choices=choices,
        ),
    )
    return _peeked(chat, facts)


def _read_completion(body: bytes, arrival: Arrival) -> Peeked | ApiError:
    completion = _decode_completion(body)
    echo = is_on(completion.echo)
    if completion.max_tokens == 0 and not echo:
        return bad_request("Invalid 'max_tokens': 0 is only allowed with 'echo'.", param="max_tokens")
    prompts = _read_prompts(completion)
    if isinstance(prompts, ApiError):
        return prompts
    seed = root_seed(completion.model, endpoint=Endpoint.COMPLETIONS, cache_salt=completion.cache_salt)
    chains = prompt_chains(prompts, seed=seed, block_bytes=arrival.block_bytes)
    embeds = count(completion.prompt_embeds)
    choices = max(completion.n or 1, completion.best_of or 1)
    reader = None if embeds else arrival.reader
    prompt = Prompt(
        text_bytes=sum(chain.text_bytes for chain in chains),
        token_ids=token_count(prompts),
        chains=tuple(chain.hashes for chain in chains),
        prompts=len(prompts) + embeds,
        media_parts=embeds,
    )
    facts = facts_of(
        arrival,
        Endpoint.COMPLETIONS,
        completion.model,
        prompt,
        stream=bool(completion.stream),
        # The engine still makes one token, and drops it, for an echo without generation.
        max_output_tokens=None if completion.max_tokens is None else max(1, completion.max_tokens),
        choices=choices,
        prompt_logprobs=is_set(completion.prompt_logprobs),
        echo_logprobs=echo and is_set(completion.logprobs),
        conversation=arrival.conversation_facts(completion.conversation_fields()),
        output_features=prompts_features(reader, prompts, model=completion.model, choices=choices),
    )
    return _peeked(completion, facts)


def _peeked(request: _Request, facts: RequestFacts) -> Peeked:
    return Peeked(facts, facts.stream, _wants_usage(request.stream_options), request.model)


def _wants_usage(stream_options: msgspec.Raw) -> bool:
    if not stream_options:  # as most are: an absent field is empty
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
        if is_set(completion.prompt_embeds):
            return []
        return bad_request("Missing required parameter: 'prompt'.", param="prompt")
    try:
        return decode_prompts(raw, param="prompt")
    except msgspec.ValidationError as error:
        return wrong_shape(error, root="prompt")
