"""The routes that make no tokens: embeddings, pooling, score, rerank, tokenize, detokenize, render.

The rule of this module: what is read is how much work it is and whose prompt it is. A prompt of a shape that nobody
here knows is the worker's to judge, and counts by its bytes. Only embeddings and pooling run a prompt through the
model as it stands, so only they have block chains.
"""

from collections.abc import Iterable

import msgspec

from gateway.core.types import Endpoint
from gateway.wire.dialects.base import Dialect, json_peek
from gateway.wire.errors import ApiError, bad_request
from gateway.wire.peeked import Arrival, Peeked, Prompt, count, is_set, peeked, text_or_items
from gateway.wire.prompt_chain import Message, chat_chain, root_seed
from gateway.wire.prompts import decode_prompts, prompt_chains, token_count

_ABSENT = msgspec.Raw()


class _Request(msgspec.Struct, kw_only=True):
    model: str | None = None
    input: msgspec.Raw = _ABSENT
    prompt: msgspec.Raw = _ABSENT
    messages: msgspec.Raw = _ABSENT
    chat_template: msgspec.Raw = _ABSENT
    tools: msgspec.Raw = _ABSENT
    tokens: msgspec.Raw = _ABSENT
    cache_salt: msgspec.Raw = _ABSENT


class _Pairs(msgspec.Struct, kw_only=True):
    """A score's or a rerank's two sides, under all their names."""

    model: str | None = None
    query: msgspec.Raw = _ABSENT
    queries: msgspec.Raw = _ABSENT
    text_1: msgspec.Raw = _ABSENT
    data_1: msgspec.Raw = _ABSENT
    documents: msgspec.Raw = _ABSENT
    items: msgspec.Raw = _ABSENT
    text_2: msgspec.Raw = _ABSENT
    data_2: msgspec.Raw = _ABSENT


class _Document(msgspec.Struct):
    """A document with parts in it, as multi-modal rerankers take them."""

    content: list[msgspec.Raw] | None = None


_decode_request = msgspec.json.Decoder(_Request).decode
_decode_pairs = msgspec.json.Decoder(_Pairs).decode
_decode_document = msgspec.json.Decoder(_Document).decode
_decode_messages = msgspec.json.Decoder(list[Message]).decode


# --- embeddings and pooling ----------------------------------------------------------------------------------------


def _read_embeddings(body: bytes, arrival: Arrival) -> Peeked | ApiError:
    request = _decode_request(body)
    if not request.model:
        return bad_request("Missing required parameter: 'model'.", param="model")
    return _pooled(request, arrival, Endpoint.EMBEDDINGS)


def _read_pooling(body: bytes, arrival: Arrival) -> Peeked | ApiError:
    return _pooled(_decode_request(body), arrival, Endpoint.POOLING)


def _pooled(request: _Request, arrival: Arrival, endpoint: Endpoint) -> Peeked:
    seed = root_seed(request.model or "", endpoint=endpoint, cache_salt=request.cache_salt)
    if is_set(request.input):
        prompt = _texts(request.input, seed, arrival.block_bytes)
    else:
        prompt = _chat(request, seed, arrival.block_bytes)
    return peeked(arrival, endpoint, model=request.model, prompt=prompt)


def _texts(raw: msgspec.Raw, seed: int, block_bytes: int) -> Prompt:
    try:
        prompts = decode_prompts(bytes(raw), param="input")
    except msgspec.DecodeError:
        return Prompt(text_bytes=len(raw), prompts=max(1, count(raw)))
    if isinstance(prompts, ApiError):
        return Prompt(text_bytes=len(raw))
    chains = prompt_chains(prompts, seed=seed, block_bytes=block_bytes)
    return Prompt(
        text_bytes=sum(chain.text_bytes for chain in chains),
        token_ids=token_count(prompts),
        chains=tuple(chain.hashes for chain in chains),
        prompts=len(prompts),
    )


def _chat(request: _Request, seed: int, block_bytes: int) -> Prompt:
    try:
        messages = _decode_messages(request.messages)
    except msgspec.DecodeError:
        return Prompt(text_bytes=len(request.messages))
    preamble = (request.chat_template, request.tools)
    chain = chat_chain(messages, seed=seed, preamble=preamble, block_bytes=block_bytes)
    return chain.as_prompt()


# --- tokenize, detokenize, render ----------------------------------------------------------------------------------


def _read_tokenize(body: bytes, arrival: Arrival) -> Peeked | ApiError:
    return _counted(body, arrival, Endpoint.TOKENIZE)


def _read_render(body: bytes, arrival: Arrival) -> Peeked | ApiError:
    return _counted(body, arrival, Endpoint.RENDER)


def _counted(body: bytes, arrival: Arrival, endpoint: Endpoint) -> Peeked:
    request = _decode_request(body)
    if is_set(request.prompt):
        prompt = _texts(request.prompt, 0, arrival.block_bytes)
    else:
        prompt = _chat(request, 0, arrival.block_bytes)
    unchained = Prompt(
        text_bytes=prompt.text_bytes,
        token_ids=prompt.token_ids,
        prompts=prompt.prompts,
        media_parts=prompt.media_parts,
    )
    return peeked(arrival, endpoint, model=request.model, prompt=unchained)


def _read_detokenize(body: bytes, arrival: Arrival) -> Peeked | ApiError:
    request = _decode_request(body)
    return peeked(arrival, Endpoint.DETOKENIZE, model=request.model, prompt=Prompt(token_ids=count(request.tokens)))


# --- score and rerank ----------------------------------------------------------------------------------------------


def _read_score(body: bytes, arrival: Arrival) -> Peeked | ApiError:
    return _paired(body, arrival, Endpoint.SCORE)


def _read_rerank(body: bytes, arrival: Arrival) -> Peeked | ApiError:
    return _paired(body, arrival, Endpoint.RERANK)


def _paired(body: bytes, arrival: Arrival, endpoint: Endpoint) -> Peeked:
    """The text of both sides once; a prompt is one pair, and a single query pairs with every document."""
    pairs = _decode_pairs(body)
    left = _side((pairs.query, pairs.queries, pairs.text_1, pairs.data_1))
    right = _side((pairs.documents, pairs.items, pairs.text_2, pairs.data_2))
    parts = [part for item in (*left, *right) for part in _parts(item)]
    chain = chat_chain([Message(content=parts)], seed=0, block_bytes=arrival.block_bytes)
    prompt = Prompt(text_bytes=chain.text_bytes, prompts=max(1, len(left), len(right)), media_parts=chain.media_parts)
    return peeked(arrival, endpoint, model=pairs.model, prompt=prompt)


def _side(names: Iterable[msgspec.Raw]) -> list[msgspec.Raw]:
    """The items of the one name that is set."""
    raw = next((raw for raw in names if is_set(raw)), None)
    if raw is None:
        return []
    items = text_or_items(raw)
    return items if isinstance(items, list) else [raw]


def _parts(raw: msgspec.Raw) -> list[msgspec.Raw]:
    try:
        content = _decode_document(raw).content
    except msgspec.DecodeError:
        return [raw]
    return [raw] if content is None else content


EMBEDDINGS = Dialect(endpoint=Endpoint.EMBEDDINGS, peek=json_peek(_read_embeddings))
POOLING = Dialect(endpoint=Endpoint.POOLING, peek=json_peek(_read_pooling))
SCORE = Dialect(endpoint=Endpoint.SCORE, peek=json_peek(_read_score))
RERANK = Dialect(endpoint=Endpoint.RERANK, peek=json_peek(_read_rerank))
TOKENIZE = Dialect(endpoint=Endpoint.TOKENIZE, peek=json_peek(_read_tokenize))
DETOKENIZE = Dialect(endpoint=Endpoint.DETOKENIZE, peek=json_peek(_read_detokenize))
RENDER = Dialect(endpoint=Endpoint.RENDER, peek=json_peek(_read_render))
