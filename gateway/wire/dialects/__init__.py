"""The dialects that the gateway speaks, by route.

The rule of this package: see `gateway.wire.dialects.base`. A route that is not in `ROUTES` is none of an engine's.
"""

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType

from gateway.core.types import Endpoint
from gateway.wire.dialects.audio import AUDIO
from gateway.wire.dialects.base import Dialect
from gateway.wire.dialects.messages import COUNT_TOKENS, MESSAGES
from gateway.wire.dialects.plain import DETOKENIZE, EMBEDDINGS, POOLING, RENDER, RERANK, SCORE, TOKENIZE
from gateway.wire.dialects.responses import RESPONSES
from gateway.wire.openai import peek
from gateway.wire.sse import SseScanner

__all__ = ["CHAT", "COMPLETIONS", "RESPONSES", "ROUTES", "Dialect"]

CHAT = Dialect(endpoint=Endpoint.CHAT, peek=partial(peek, endpoint=Endpoint.CHAT))
COMPLETIONS = Dialect(
    endpoint=Endpoint.COMPLETIONS,
    peek=partial(peek, endpoint=Endpoint.COMPLETIONS),
    scanner=partial(SseScanner, Endpoint.COMPLETIONS),
)

ROUTES: Mapping[str, Dialect] = MappingProxyType(
    {
        "/v1/chat/completions": CHAT,
        "/v1/completions": COMPLETIONS,
        "/v1/responses": RESPONSES,
        "/v1/messages": MESSAGES,
        "/v1/messages/count_tokens": COUNT_TOKENS,
        "/v1/embeddings": EMBEDDINGS,
        "/pooling": POOLING,
        "/v1/pooling": POOLING,
        "/score": SCORE,
        "/v1/score": SCORE,
        "/rerank": RERANK,
        "/v1/rerank": RERANK,
        "/v2/rerank": RERANK,
        "/tokenize": TOKENIZE,
        "/detokenize": DETOKENIZE,
        "/v1/chat/completions/render": RENDER,
        "/v1/completions/render": RENDER,
        "/v1/audio/transcriptions": AUDIO,
        "/v1/audio/translations": AUDIO,
    }
)
"""All of them POST."""
