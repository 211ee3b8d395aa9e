"""Embeddings, pooling, scores and reranking, as a vLLM server of a pooling model answers them.

Each prompt is computed by the engine, then a vector is drawn by its hash: equal texts have equal vectors. A score is
the share of words that two texts have in common, which orders documents as a reader would.
"""

import base64
from typing import Any

import msgspec
import numpy as np
import xxhash
from msgspec import Struct
from msgspec.json import Decoder

from loadtest.worker import bodies, requests
from loadtest.worker.answers import Json
from loadtest.worker.app import HttpCall, Routes
from loadtest.worker.bodies import ChatBody, CompletionBody
from loadtest.worker.dialects.base import Job
from loadtest.worker.errors import ApiError
from loadtest.worker.requests import GenerationRequest
from loadtest.worker.serving import Serving

EMBEDDING_SIZE = 384
"""Numbers in a vector, where the client does not ask for fewer."""


class EmbedBody(Struct, frozen=True, kw_only=True):
    """POST /v1/embeddings and /pooling, of texts, token ids or a conversation."""

    model: str | None = None
    input: str | list[str | int | list[int]] | None = None
    messages: list[bodies.Message] | None = None
    encoding_format: str | None = "float"
    dimensions: int | None = None
    task: str | None = None


class ScoreBody(Struct, frozen=True, kw_only=True):
    """POST /v1/score: each text of one side with its partner on the other, or one with all."""

    model: str | None = None
    text_1: str | list[str] | None = None
    text_2: str | list[str] | None = None
    queries: str | list[str] | None = None
    documents: str | list[str] | None = None


class RerankBody(Struct, frozen=True, kw_only=True):
    """POST /v1/rerank."""

    query: str
    documents: list[str]
    model: str | None = None
    top_n: int | None = 0


_EMBED = Decoder(EmbedBody, strict=False)
_SCORE = Decoder(ScoreBody, strict=False)
_RERANK = Decoder(RerankBody, strict=False)


class PoolingRoutes:
    """The routes of one worker whose model pools."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving

    def routes(self) -> Routes:
        """Under vLLM's names, the unversioned ones among them."""
        score, rerank = {"POST": self._score}, {"POST": self._rerank}
        return {
            "/v1/embeddings": {"POST": self._embed},
            "/pooling": {"POST": self._pool},
            "/score": score,
            "/v1/score": score,
            "/rerank": rerank,
            "/v1/rerank": rerank,
            "/v2/rerank": rerank,
        }

    async def _embed(self, call: HttpCall) -> None:
        body = bodies.decode(_EMBED, await call.json_body())
        await self._vectors(call, body, id_prefix="embd-", kind="embedding", field="embedding")

    async def _pool(self, call: HttpCall) -> None:
        body = bodies.decode(_EMBED, await call.json_body())
        if body.task not in {None, "embed"}:
            words = f"Try switching the model's pooling_task via --pooler-config.task {body.task}."
            raise ApiError.bad_request(words, param="task")
        await self._vectors(call, body, id_prefix="pooling-", kind="pooling", field="data")

    async def _vectors(self, call: HttpCall, body: EmbedBody, *, id_prefix: str, kind: str, field: str) -> None:
        size = body.dimensions or EMBEDDING_SIZE
        if not 1 <= size <= EMBEDDING_SIZE or body.encoding_format not in {None, "float", "base64"}:
            raise ApiError.bad_request("no such vector", param="dimensions", value=body.dimensions)
        as_base64 = body.encoding_format == "base64"
        job, tokens = await self._compute(call, _request(body), id_prefix)
        data: list[Json] = [
            {"index": index, "object": kind, field: vector(plan.prompt.data, size=size, as_base64=as_base64)}
            for index, plan in enumerate(job.plans)
        ]
        await call.reply(200, _listed(job, data, tokens))

    async def _score(self, call: HttpCall) -> None:
        body = bodies.decode(_SCORE, await call.json_body())
        pairs = _pairs(body)
        job, tokens = await self._compute(call, _of_texts(body.model, [f"{a}\n{b}" for a, b in pairs]), "score-")
        data: list[Json] = [
            {"index": index, "object": "score", "score": likeness(*pair)} for index, pair in enumerate(pairs)
        ]
        await call.reply(200, _listed(job, data, tokens))

    async def _rerank(self, call: HttpCall) -> None:
        body = bodies.decode(_RERANK, await call.json_body())
        texts = [f"{body.query}\n{document}" for document in body.documents]
        job, tokens = await self._compute(call, _of_texts(body.model, texts), "score-")
        scores = [likeness(body.query, document) for document in body.documents]
        places = sorted(range(len(scores)), key=lambda place: -scores[place])[: body.top_n or None]
        results = [
            {
                "index": place,
                "document": {"text": body.documents[place], "multi_modal": None},
                "relevance_score": scores[place],
            }
            for place in places
        ]
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        answer = {"id": job.envelope.response_id, "model": job.envelope.model, "usage": usage, "results": results}
        await call.reply(200, msgspec.json.encode(answer))

    async def _compute(self, call: HttpCall, request: GenerationRequest, id_prefix: str) -> tuple[Job, int]:
        job, usage = await self._serving.finish(call, request, id_prefix=id_prefix)
        return job, usage.prompt_tokens


def vector(data: bytes, *, size: int, as_base64: bool) -> list[float] | str:
    """A unit vector that depends on the prompt alone, in single precision."""
    drawn = np.random.default_rng(xxhash.xxh3_64_intdigest(data)).standard_normal(size)
    single = (drawn / np.linalg.norm(drawn)).astype("<f4")
    if as_base64:
        return base64.b64encode(single.tobytes()).decode()
    numbers: list[float] = single.tolist()
    return numbers


def likeness(one: str, other: str) -> float:
    """The share of their words that two texts have in common, 0 to 1."""
    first, second = set(one.lower().split()), set(other.lower().split())
    return len(first & second) / max(1, len(first | second))


def _listed(job: Job, data: list[Json], tokens: int) -> bytes:
    answer: dict[str, Any] = {
        "id": job.envelope.response_id,
        "object": "list",
        "created": job.envelope.created,
        "model": job.envelope.model,
        "data": data,
        "usage": {
            "prompt_tokens": tokens,
            "total_tokens": tokens,
            "completion_tokens": 0,
            "prompt_tokens_details": None,
            "completion_tokens_details": None,
        },
    }
    return msgspec.json.encode(answer)


def _request(body: EmbedBody) -> GenerationRequest:
    """One engine step per prompt: a pooling model stops where a generating one has its first token."""
    if body.messages is not None:
        return requests.from_chat(ChatBody(model=body.model, messages=body.messages, max_tokens=1, ignore_eos=True))
    prompt = body.input
    return requests.from_completion(CompletionBody(model=body.model, prompt=prompt, max_tokens=1, ignore_eos=True))


def _of_texts(model: str | None, texts: list[str]) -> GenerationRequest:
    return requests.from_completion(CompletionBody(model=model, prompt=[*texts], max_tokens=1, ignore_eos=True))


def _pairs(body: ScoreBody) -> list[tuple[str, str]]:
    first = body.text_1 if body.queries is None else body.queries
    second = body.text_2 if body.documents is None else body.documents
    if not first or not second:
        raise ApiError.bad_request("Both sides of a score must be provided.", param="text_1")
    ones = [first] if isinstance(first, str) else first
    others = [second] if isinstance(second, str) else second
    if len(ones) == 1:
        ones = ones * len(others)
    if len(ones) != len(others):
        raise ApiError.bad_request("Input lengths must be either 1:1, 1:N or N:N")
    return list(zip(ones, others, strict=True))
