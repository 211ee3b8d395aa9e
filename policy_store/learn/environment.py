"""Where a path policy is tried out: the simulator or a live gateway, through one interface.

The rule of this module: serving goes on. What one call leaves in queues and caches the next one finds there, so a
policy pays for the state that it was given, as it would in production.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from gateway.core.path.base import PathPolicy
from gateway.core.path.table import LEARNABLE
from gateway.core.types import Features, Path, Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedRow:
    """One request that has ended: what was known when it was routed, and what came of it."""

    order: int
    """Its place among all requests of the environment, by arrival, from 0."""
    features: Features
    prefill_backlog_tokens: int | None
    """Prompt tokens that the prefill worker had yet to compute; None where there was none, or it is not known."""
    decode_requests: int | None
    """Requests in flight on the decode worker; None where it is not known."""
    path: Path
    reason: Reason
    cell: int | None
    """The entry of the policy's table: the cluster, or cluster x regimes + regime; None where no table decided."""
    propensity: float
    ttft_s: float | None
    tpot_s: float | None
    ok: bool
    attained: bool | None
    """Whether the SLO was met; None where it cannot be judged, as where the client left before it had passed."""

    @property
    def is_learnable(self) -> bool:
        """Whether a table decided, and the outcome can be judged: only then does it say something about a cell."""
        return self.reason in LEARNABLE and self.cell is not None and self.attained is not None

    @property
    def has_numbers(self) -> bool:
        """Whether every feature is a finite number of tokens."""
        features = self.features
        values = (features.isl_tokens, features.prefill_isl_tokens, features.decode_isl_tokens, features.osl_tokens)
        return all(math.isfinite(value) and value >= 0 for value in values)


class Environment(Protocol):
    """Serves traffic by one policy after the other."""

    @property
    def served(self) -> int:
        """How many requests have been routed: the `order` of the next one."""

    def serve(self, policy: PathPolicy, requests: int) -> list[ServedRow]:
        """Route the next `requests` arrivals by `policy`; every request that ended meanwhile, in order of arrival.

        Requests still under way are not waited for: they are in the rows of the call during which they end.
        """


def attainment(rows: Iterable[ServedRow]) -> float | None:
    """The share of requests that met their SLO, of those that can be judged; None without any."""
    judged = [row.attained for row in rows if row.attained is not None]
    return sum(judged) / len(judged) if judged else None


def judged(rows: Sequence[ServedRow]) -> int:
    """How many rows say whether the SLO was met."""
    return sum(row.attained is not None for row in rows)
