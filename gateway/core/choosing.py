"""What a route is chosen from, and what a choice is before it is a decision.

The rule of this module: it only reads. Views and outlooks are made here, the same way for whoever chooses.
"""

import math

from gateway.core.candidates import LEAST, Bounds
from gateway.core.conversation.turn import Turn
from gateway.core.features import Estimate
from gateway.core.fleet_state import FleetState
from gateway.core.forecast import Forecast
from gateway.core.health import HealthTable
from gateway.core.path.eligibility import must_be_local
from gateway.core.policy import Policy
from gateway.core.pools import Pools, Routable
from gateway.core.prefix import PrefixIndex
from gateway.core.record import record
from gateway.core.types import (
    Candidate,
    Features,
    Outlook,
    Path,
    PathChoice,
    RequestFacts,
    SloTarget,
    WorkerId,
    WorkerView,
)


@record
class Ask:
    """One request to be routed, at one moment."""

    facts: RequestFacts
    estimate: Estimate
    now_s: float
    exclude: frozenset[WorkerId]
    attempt: int
    slo: SloTarget
    turn: Turn | None = None
    """Of which conversation it is a turn; None for a request like any other."""
    waited_s: float = 0.0
    """For room, since it was first asked."""
    kept_on: WorkerId | None = None
    """The worker that keeps the response which it goes on from; None where it goes on from none that is known."""
    chance: int = 0
    """Of this decision alone: another one's, and another replica's, are others. Its bits are not spread yet."""

    @property
    def is_first(self) -> bool:
        """Whether a conversation begins with it."""
        return self.turn is not None and self.turn.identity.is_first


@record
class Pick:
    """The worker that a pool gives, and how the pool was scored."""

    view: WorkerView
    ranked: list[Candidate]
    pinned: bool = False


@record
class Chosen:
    """A route before it is a decision."""

    features: Features
    choice: PathChoice
    outlook: Outlook | None
    prefill: Pick | None
    decode: Pick


@record
class MustWait:
    """There is no room for it now."""

    words: str


class Surroundings:
    """The fleet as a request finds it."""

    def __init__(
        self, policy: Policy, fleet: FleetState, health: HealthTable, prefix: PrefixIndex, forecast: Forecast | None
    ) -> None:
        self.policy = policy
        self.fleet = fleet
        self.health = health
        self.forecast = forecast
        self.prefix = prefix
        self.pools = Pools(fleet, health)
        most = policy.max_candidates
        self.bounds = None if most is None else Bounds(most=most, sample=policy.load_sample)
        self._whole = math.inf if most is None else most if policy.replica is None else LEAST

    def is_large(self, pool: Routable) -> bool:
        """Whether not all of a pool is looked at.

        By all members, well or not: who is first on the circle must not change with somebody's health.
        """
        return len(pool.members.workers) > self._whole

    def is_plain(self, worker_id: WorkerId) -> bool:
        """Whether both paths lead there as usual: it does not split by itself, and is not asked for want of better."""
        return not self.fleet[worker_id].spec.splits and self.health.is_well(worker_id)

    def views(self, pool: list[WorkerId], hits: dict[WorkerId, int], now_s: float) -> list[WorkerView]:
        """The pool's workers, each with what it holds of the prompt."""
        views = self.fleet.views(pool, now_s)
        if not hits:
            return views
        return [view.with_hit(hit) if (hit := hits.get(view.worker_id)) else view for view in views]

    def forced(self, ask: Ask, decode: WorkerView, *, has_prefiller: bool, decode_ejected: bool) -> PathChoice | None:
        """The local path, where no other is possible."""
        return must_be_local(
            ask.facts,
            ask.estimate.isl_tokens,
            block_tokens=decode.kv_block_tokens or self.policy.default_kv_block_tokens,
            has_prefiller=has_prefiller,
            decode_ejected=decode_ejected,
        )

    def outlook(self, ask: Ask, path: Path, prefill: Pick | None, decode: Pick) -> Outlook | None:
        """What is expected of a route that was not chosen by what is expected of it."""
        forecast, isl, osl = self.forecast, ask.estimate.isl_tokens, ask.estimate.osl_tokens
        if forecast is None or prefill is decode:
            return None
        batch = forecast.decode(decode.view, isl, osl)
        if path is Path.LOCAL or prefill is None:
            return forecast.local(batch, isl, ask.now_s)
        return forecast.remote(batch, forecast.prefill_leg(prefill.view, isl, ask.now_s), isl, osl, ask.now_s)


def features_of(estimate: Estimate, prefill: Pick | None, decode: Pick) -> Features:
    """The four numbers, for the workers that are thought of."""
    isl = estimate.isl_tokens
    prefill_isl = isl if prefill is None else isl - prefill.view.hit_tokens
    return Features(isl, prefill_isl, isl - decode.view.hit_tokens, estimate.osl_tokens)
