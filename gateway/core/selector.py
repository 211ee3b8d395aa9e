"""How a request gets its path and its workers.

The rule of this module: it only reads. Whoever asks twice without a change in between gets the same answer;
the router alone writes down what was decided.
"""

from random import Random

from gateway.core.features import Estimate
from gateway.core.fleet_state import FleetState
from gateway.core.forecast import Forecast
from gateway.core.hashing import rendezvous
from gateway.core.health import HealthTable
from gateway.core.path.base import PathQuestion
from gateway.core.path.eligibility import must_be_local
from gateway.core.path.priced import JointPolicy, RouteQuestion, candidates_of, choice_of
from gateway.core.placement import MAX_CANDIDATES, Placement, Pool
from gateway.core.policy import Policy
from gateway.core.pools import Pools
from gateway.core.prefix import PrefixIndex
from gateway.core.record import record
from gateway.core.slo import target_for
from gateway.core.types import (
    Candidate,
    Decision,
    DecisionId,
    Features,
    Outlook,
    Path,
    PathChoice,
    Refusal,
    RefusalKind,
    RequestFacts,
    Role,
    WorkerId,
    WorkerView,
)

SHOWN_MODEL_CHARS = 256
"""A client may ask for any text as a model; a refusal repeats so much of it."""


@record
class Ask:
    """One request to be routed, at one moment."""

    facts: RequestFacts
    estimate: Estimate
    now_s: float
    exclude: frozenset[WorkerId]
    attempt: int


@record
class _Pick:
    """The worker that a pool gives, and how the pool was scored."""

    view: WorkerView
    ranked: list[Candidate]
    pinned: bool = False


@record
class _Chosen:
    """A route before it is a decision."""

    features: Features
    choice: PathChoice
    outlook: Outlook | None
    prefill: _Pick | None
    decode: _Pick


class Selector:
    """Reads the state of the fleet and answers."""

    def __init__(
        self, policy: Policy, fleet: FleetState, health: HealthTable, prefix: PrefixIndex, forecast: Forecast | None
    ) -> None:
        self._policy = policy
        self._fleet = fleet
        self._health = health
        self._prefix = prefix
        self._forecast = forecast
        self._pools = Pools(fleet, health)

    def decide(self, ask: Ask, decision_id: DecisionId, rng: Random) -> Decision | Refusal:
        """The route of one request, or why it has none."""
        hits = self._hit_tokens(ask)
        chosen = self._choose_jointly(ask, hits) or self._choose(ask, hits, rng)
        return self._refusal(ask) if chosen is None else self._decision(ask, decision_id, chosen)

    def _choose(self, ask: Ask, hits: dict[WorkerId, int], rng: Random) -> _Chosen | None:
        """First the workers, then the path."""
        decode = self._pick_decode(ask, hits)
        if decode is None:
            return None
        prefill = self._pick_prefill(ask, hits, decode)
        features = _features(ask.estimate, prefill, decode)
        choice = self._choose_path(ask, features, prefill, decode, rng)
        outlook = choice.outlook or self._outlook(ask, choice.path, prefill, decode)
        return _Chosen(features=features, choice=choice, outlook=outlook, prefill=prefill, decode=decode)

    def _choose_jointly(self, ask: Ask, hits: dict[WorkerId, int]) -> _Chosen | None:
        """Workers and path at once; None where the policy does not do that, or the fleet is not as it expects."""
        policy, forecast = self._policy.path, self._forecast
        if not isinstance(policy, JointPolicy) or forecast is None:
            return None
        decode_pool = self._pools.routable(ask.facts.model, Role.DECODE, exclude=ask.exclude)
        if not decode_pool or not all(self._is_plain(worker_id) for worker_id in decode_pool):
            return None
        prefill_pool = self._prefill_pool(ask, ask.exclude)
        decode = self._views_with_hits(decode_pool, hits, ask.now_s)
        forced = must_be_local(
            ask.facts,
            ask.estimate.isl_tokens,
            block_tokens=decode[0].kv_block_tokens or self._policy.default_kv_block_tokens,
            has_prefiller=bool(prefill_pool),
            decode_ejected=False,
        )
        question = RouteQuestion(
            isl_tokens=ask.estimate.isl_tokens,
            osl_tokens=ask.estimate.osl_tokens,
            slo=target_for(ask.facts, self._policy.slo),
            now_s=ask.now_s,
            prefill=self._views_with_hits([] if forced else prefill_pool, hits, ask.now_s),
            decode=decode,
            forecast=forecast,
        )
        route, compared = policy.choose_route(question)
        picked_prefill = None if route.prefill is None else _Pick(view=route.prefill, ranked=[])
        picked_decode = _Pick(view=route.decode, ranked=candidates_of(compared))
        features = _features(ask.estimate, picked_prefill, picked_decode)
        return _Chosen(
            features=features,
            choice=forced or choice_of(route, compared, features),
            outlook=route.outlook,
            prefill=picked_prefill,
            decode=picked_decode,
        )

    def _is_plain(self, worker_id: WorkerId) -> bool:
        """Whether both paths lead there as usual: it does not split by itself, and is not asked for want of better."""
        return not self._fleet[worker_id].spec.splits and self._health.is_well(worker_id)

    def _views_with_hits(self, pool: list[WorkerId], hits: dict[WorkerId, int], now_s: float) -> list[WorkerView]:
        views = self._fleet.views(pool, now_s)
        if not hits:
            return views
        return [view.with_hit(hit) if (hit := hits.get(view.worker_id)) else view for view in views]

    def _outlook(self, ask: Ask, path: Path, prefill: _Pick | None, decode: _Pick) -> Outlook | None:
        """What is expected of a route that was not chosen by what is expected of it."""
        forecast, isl, osl = self._forecast, ask.estimate.isl_tokens, ask.estimate.osl_tokens
        if forecast is None or prefill is decode:
            return None
        batch = forecast.decode(decode.view, isl, osl)
        if path is Path.LOCAL or prefill is None:
            return forecast.local(batch, isl, ask.now_s)
        return forecast.remote(batch, forecast.prefill_leg(prefill.view, isl, ask.now_s), isl, osl, ask.now_s)

    def _hit_tokens(self, ask: Ask) -> dict[WorkerId, int]:
        chains = ask.facts.block_chains
        blocks = self._prefix.hit_blocks(chains[0]) if chains else {}
        for chain in chains[1:]:
            for worker_id, count in self._prefix.hit_blocks(chain).items():
                blocks[worker_id] = blocks.get(worker_id, 0) + count
        tokens = {count: ask.estimate.hit_tokens(count) for count in set(blocks.values())}
        return {worker_id: tokens[count] for worker_id, count in blocks.items()}

    def _pick_decode(self, ask: Ask, hits: dict[WorkerId, int]) -> _Pick | None:
        """The decode worker: the session's own, else the best by score.

        A session pins to its first choice among the workers that take requests now, so it moves while that one is
        ejected, and then back to where its cache is: no replica needs to remember a session for all to agree on it.
        """
        pool = self._pools.routable(ask.facts.model, Role.DECODE, exclude=ask.exclude)
        if not pool:
            return None
        pin = rendezvous(ask.facts.session, pool) if ask.facts.session else None
        return self._pick(ask, pool, hits, self._policy.decode_placement, pin)

    def _pick_prefill(self, ask: Ask, hits: dict[WorkerId, int], decode: _Pick) -> _Pick | None:
        worker_id = decode.view.worker_id
        if self._fleet[worker_id].spec.splits:
            return decode
        exclude = ask.exclude if self._fleet[worker_id].spec.role is Role.DECODE else ask.exclude | {worker_id}
        pool = self._prefill_pool(ask, exclude)
        return self._pick(ask, pool, hits, self._policy.prefill_placement) if pool else None

    def _prefill_pool(self, ask: Ask, exclude: frozenset[WorkerId]) -> list[WorkerId]:
        offered = ask.facts.prefill_from
        return self._pools.routable(ask.facts.model, Role.PREFILL, exclude=exclude, offered=offered)

    def _pick(
        self,
        ask: Ask,
        pool: list[WorkerId],
        hits: dict[WorkerId, int],
        placement: Placement,
        pin: WorkerId | None = None,
    ) -> _Pick:
        views = self._fleet.views(pool, ask.now_s)
        hit_tokens = [hits.get(worker_id, 0) for worker_id in pool] if hits else [0] * len(pool)
        candidates = Pool(views=views, hit_tokens=hit_tokens, isl_tokens=ask.estimate.isl_tokens)
        ranked = placement.rank(candidates, ask.facts.request_id, MAX_CANDIDATES)
        place = pool.index(pin or ranked[0].worker_id)
        view, hit = views[place], hit_tokens[place]
        return _Pick(view=view.with_hit(hit) if hit else view, ranked=ranked, pinned=pin is not None)

    def _choose_path(
        self, ask: Ask, features: Features, prefill: _Pick | None, decode: _Pick, rng: Random
    ) -> PathChoice:
        block = decode.view.kv_block_tokens or self._policy.default_kv_block_tokens
        forced = must_be_local(
            ask.facts,
            features.isl_tokens,
            block_tokens=block,
            has_prefiller=prefill is not None,
            # One that splits by itself holds no other worker's KV back.
            decode_ejected=prefill is not decode and not self._health.is_well(decode.view.worker_id),
        )
        if forced is not None:
            return forced
        assert prefill is not None
        question = PathQuestion(
            features=features,
            prefill=prefill.view,
            decode=decode.view,
            now_s=ask.now_s,
            slo=target_for(ask.facts, self._policy.slo),
            # A worker that splits by itself has prices of its own.
            forecast=None if prefill is decode else self._forecast,
        )
        return self._policy.path.choose(question, rng)

    def _decision(self, ask: Ask, decision_id: DecisionId, chosen: _Chosen) -> Decision:
        choice, prefill, decode = chosen.choice, chosen.prefill, chosen.decode
        remote = choice.path is Path.REMOTE
        # A worker that splits by itself is its own prefill worker: one leg, and nobody else to name.
        two_legs = remote and prefill is not None and prefill is not decode
        return Decision(
            decision_id=decision_id,
            request_id=ask.facts.request_id,
            model=ask.facts.model,
            attempt=ask.attempt,
            path=choice.path,
            prefill_worker=prefill.view.worker_id if two_legs and prefill else None,
            decode_worker=decode.view.worker_id,
            policy=self._policy.path.name,
            policy_version=self._policy.version,
            reason=choice.reason,
            words=choice.words,
            propensity=choice.propensity,
            cluster=choice.cluster,
            pinned=decode.pinned,
            features=chosen.features,
            osl_predicted=ask.estimate.osl_predicted,
            outlook=chosen.outlook,
            prefill_hit_tokens=prefill.view.hit_tokens if prefill else 0,
            decode_hit_tokens=decode.view.hit_tokens,
            slo=target_for(ask.facts, self._policy.slo),
            prefill_candidates=tuple(prefill.ranked) if prefill else (),
            decode_candidates=tuple(decode.ranked),
        )

    def _refusal(self, ask: Ask) -> Refusal:
        model = ask.facts.model
        shown = model[:SHOWN_MODEL_CHARS]
        # An empty fleet says nothing about the model: scaled to zero is 503, not 404 (llm-d-router#1735).
        if len(self._fleet) and not self._fleet.serves(model):
            kind, words = RefusalKind.MODEL_NOT_FOUND, f"The model `{shown}` does not exist."
        elif ask.exclude:
            words = "Every worker that could serve this request has failed it."
            kind = RefusalKind.EXCLUDED_ALL
        else:
            kind, words = RefusalKind.NO_DECODE_WORKER, f"No healthy worker serves `{shown}` now."
        return Refusal(request_id=ask.facts.request_id, kind=kind, words=words)


def _features(estimate: Estimate, prefill: _Pick | None, decode: _Pick) -> Features:
    isl = estimate.isl_tokens
    return Features(
        isl_tokens=isl,
        prefill_isl_tokens=isl - (prefill.view.hit_tokens if prefill else 0),
        decode_isl_tokens=isl - decode.view.hit_tokens,
        osl_tokens=estimate.osl_tokens,
    )
