"""A pair and the gateway before it, as the checks use them, and how answers and counters are read.

The rule of this module: the reference for an answer is the same request made to the engine itself, salted, so that
the decode worker computes it from nothing instead of from the blocks it was handed.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.engines.checklist import same
from tests.engines.engine_client import CHAT, COMPLETIONS, GatewayClient, Reply, encode, post, scrape, until
from tests.engines.engine_pair import Pair, Worker

ROUTES = (CHAT, COMPLETIONS)
KV_BLOCK_TOKENS = 32
LOGPROB_TOLERANCE = 1e-3
WITH_LOGPROBS: dict[str, dict[str, Any]] = {CHAT: {"logprobs": True, "top_logprobs": 5}, COMPLETIONS: {"logprobs": 5}}
"""Logprobs tell a wrong KV cache where a tiny model's text would not."""
SAMPLED = {"temperature": 1.0, "seed": 11, "max_tokens": 16}
"""Seeded sampling: its text depends on every logit, where the greedy text of a tiny model hardly depends on any."""

Check = Callable[["Lab"], str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lab:
    """A pair, a gateway before it, and the path that an ordinary request must take."""

    pair: Pair
    gateway: GatewayClient
    path: str

    def direct(self, worker: Worker, route: str, fields: dict[str, Any]) -> Reply:
        """The same request, made to a worker."""
        return post(self.gateway.client, f"{worker.url}/v1/{route}", encode(self.pair.model, fields))

    def reference(self, route: str, fields: dict[str, Any], *, salt: str = "reference") -> Reply:
        """What the decode worker answers by itself, without any block it has."""
        reply = self.direct(self.pair.decode, route, {**fields, "cache_salt": salt})
        assert reply.is_whole, f"the reference failed: {reply.status} {reply.body[:300]!r}"
        return reply

    def count(self, worker: Worker, name: str, **labels: str) -> float:
        """One of a worker's own counters."""
        return scrape(self.gateway.client, worker.url, name, **labels)

    def ask(self, route: str, fields: dict[str, Any], *, path: str | None = None) -> Reply:
        """A request that must be answered whole, by the expected path."""
        reply = self.gateway.ask(route, fields)
        assert reply.is_whole, f"{reply.status} {reply.broken} {reply.body[:300]!r}"
        same(reply.path, path or self.path, "path")
        return reply


def settled(read: Callable[[], tuple[float, ...]]) -> tuple[float, ...]:
    """Counters once the engine has written its last step down: they follow an answer by moments."""
    seen: list[tuple[float, ...]] = []

    def is_still() -> bool:
        seen.append(read())
        return len(seen) > 3 and seen[-1] == seen[-2] == seen[-3] == seen[-4]

    until(is_still, "the engine's counters stand still")
    return seen[-1]


def counts(reply: Reply) -> tuple[int, int]:
    assert reply.usage is not None, f"no usage in {reply.body[:300]!r}"
    return reply.usage["prompt_tokens"], reply.usage["completion_tokens"]


def logprob_distance(reply: Reply, expected: Reply) -> float:
    """The largest difference of a logprob; infinite where the tokens differ."""
    left, right = _logprobs(reply), _logprobs(expected)
    same(len(left), len(right), "positions with logprobs")
    assert left, "no logprobs"
    pairs = list(zip(left, right, strict=True))
    if any(one.keys() != other.keys() for one, other in pairs):
        return math.inf
    return max(abs(one[token] - other[token]) for one, other in pairs for token in one)


def _logprobs(reply: Reply) -> list[dict[str, float]]:
    """By position, token by logprob, of a whole answer or a stream with one choice."""
    found: list[dict[str, float]] = []
    for logprobs in (choice["logprobs"] for choice in reply.choices if choice.get("logprobs")):
        if "content" in logprobs:
            tops = [position["top_logprobs"] for position in logprobs["content"]]
            found += [{top["token"]: top["logprob"] for top in position} for position in tops]
        else:
            found += logprobs["top_logprobs"]
    return found
