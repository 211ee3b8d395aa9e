"""What a soak sends: every kind of request, and faults of workers in between.

The rule of this module: drawn from a seed, from a bounded number of prompts, so that what the gateway remembers has
its full size early.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from random import Random

import msgspec

from loadtest.plane.proxies import API_KEY, MODEL
from loadtest.worker.faults import Fault, FaultKind

PROMPTS = 500
OUTPUT_TOKENS = 4
LONG_PROMPT = "word " * 100
"""With it a prompt has several KV blocks, and goes remote; without, it fills none."""
LEAVES_WITHIN_S = 0.02
CALLS_OF_A_FAULT = 5


class Kind(StrEnum):
    """What a request is."""

    PLAIN = "plain"
    STREAM = "stream"
    REMOTE = "remote"
    REMOTE_STREAM = "remote stream"
    CANCELLED = "cancelled"
    """One of these four whose client leaves."""
    BAD_JSON = "bad JSON"
    UNKNOWN_MODEL = "unknown model"
    WRONG_KEY = "wrong key"
    UNKNOWN_ROUTE = "unknown route"


WEIGHTS: Mapping[Kind, int] = {
    Kind.PLAIN: 24,
    Kind.STREAM: 20,
    Kind.REMOTE: 18,
    Kind.REMOTE_STREAM: 18,
    Kind.CANCELLED: 12,
    Kind.BAD_JSON: 2,
    Kind.UNKNOWN_MODEL: 2,
    Kind.WRONG_KEY: 2,
    Kind.UNKNOWN_ROUTE: 2,
}
WHOLE = (Kind.PLAIN, Kind.STREAM, Kind.REMOTE, Kind.REMOTE_STREAM)
STATUSES: Mapping[Kind, int] = {
    Kind.BAD_JSON: 400,
    Kind.UNKNOWN_MODEL: 404,
    Kind.WRONG_KEY: 401,
    Kind.UNKNOWN_ROUTE: 404,
}
"""How the gateway must answer them, whatever its workers do."""

FAULTS = (
    Fault(kind=FaultKind.STATUS, status=500, count=CALLS_OF_A_FAULT),
    Fault(kind=FaultKind.STATUS, status=503, retry_after_s=1, count=CALLS_OF_A_FAULT),
    Fault(kind=FaultKind.DIE_BEFORE_FIRST_BYTE, count=CALLS_OF_A_FAULT),
    Fault(kind=FaultKind.DIE_AFTER_TOKENS, after_tokens=2, count=CALLS_OF_A_FAULT),
    Fault(kind=FaultKind.DIE_BETWEEN_LEGS, count=CALLS_OF_A_FAULT),
    Fault(kind=FaultKind.WRONG_JSON, count=CALLS_OF_A_FAULT),
    Fault(kind=FaultKind.NO_KV_PARAMS, count=CALLS_OF_A_FAULT),
    Fault(kind=FaultKind.WRONG_CONTENT_LENGTH, count=CALLS_OF_A_FAULT),
    Fault(kind=FaultKind.SHORT_CONTENT_LENGTH, count=CALLS_OF_A_FAULT),
    Fault(kind=FaultKind.ERROR_EVENT, after_tokens=2, count=CALLS_OF_A_FAULT),
    Fault(kind=FaultKind.GARBAGE, count=CALLS_OF_A_FAULT),
    Fault(kind=FaultKind.HANG, count=2),
    Fault(kind=FaultKind.SLOW, delay_s=0.2, count=CALLS_OF_A_FAULT),
    Fault(kind=FaultKind.REFUSE),
)
"""In turn, at one worker after the other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request."""

    kind: Kind
    target: str
    key: str
    body: bytes
    leaves_s: float | None
    """After so long its client leaves; None where it stays."""

    @property
    def headers(self) -> dict[str, str]:
        """Its own, without those that frame it."""
        return {"content-type": "application/json", "authorization": f"Bearer {self.key}"}


class Traffic:
    """An endless mix."""

    def __init__(self, seed: int) -> None:
        self._rng = Random(seed)  # noqa: S311 (not a secret)
        self._kinds, self._weights = list(WEIGHTS), list(WEIGHTS.values())

    def draw(self) -> Request:
        """The next request."""
        rng = self._rng
        (kind,) = rng.choices(self._kinds, self._weights)
        shape = rng.choice(WHOLE) if kind is Kind.CANCELLED or kind not in WHOLE else kind
        body = _body(shape, rng.randrange(PROMPTS), model="nobody" if kind is Kind.UNKNOWN_MODEL else MODEL)
        return Request(
            kind=kind,
            target="/v1/nowhere" if kind is Kind.UNKNOWN_ROUTE else "/v1/chat/completions",
            key="sk-wrong" if kind is Kind.WRONG_KEY else API_KEY,
            body=body[:-1] if kind is Kind.BAD_JSON else body,
            leaves_s=rng.uniform(0.0, LEAVES_WITHIN_S) if kind is Kind.CANCELLED else None,
        )


def _body(shape: Kind, number: int, *, model: str) -> bytes:
    is_remote = shape in (Kind.REMOTE, Kind.REMOTE_STREAM)
    return msgspec.json.encode(
        {
            "model": model,
            "messages": [{"role": "user", "content": f"{number} {LONG_PROMPT if is_remote else 'a'}"}],
            "max_tokens": OUTPUT_TOKENS,
            "ignore_eos": True,
            "stream": shape in (Kind.STREAM, Kind.REMOTE_STREAM),
        }
    )
