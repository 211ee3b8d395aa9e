"""How a request gets its path and its workers.

The rule of this module: it only reads. Whoever asks twice without a change in between gets the same answer;
the router alone writes down what was decided.
"""

from dataclasses import dataclass, replace
from random import Random

from gateway.core.features import Estimate
from gateway.core.fleet_state import FleetState
from gateway.core.hashing import rendezvous
from gateway.core.health import HealthTable
from gateway.core.path.base import PathQuestion
from gateway.core.path.eligibility import must_be_local
from gateway.core.placement import MAX_CANDIDATES, Placement, Pool
from gateway.core.policy import Policy
from gateway.core.prefix import PrefixIndex
from gateway.core.slo import target_for
from gateway.core.types import (
    Candidate,
    Decision,
    DecisionId,
    Features,
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One request to be routed, at one moment."""

    facts: RequestFacts
    estimate: Estimate
    now_s: float
    exclude: frozenset[WorkerId]
    attempt: int


@dataclass(frozen=True, slots=True)
class _Pick:
    """The worker that a pool gives, and how the pool was scored."""

    view: WorkerView
    ranked: list[Candidate]
    pinned: bool = False


class Selector:
    """Reads the state of the fleet and answers."""

    def __init__(self, policy: Policy, fleet: FleetState, health: HealthTable, prefix: PrefixIndex) -> None:
        self._policy = policy
        self._fleet = fleet
        self._health = health
        self._prefix = prefix
        self._pools: dict[tuple[str, Role], list[WorkerId]] = {}
        self._pools_of = -1

    def decide(self, ask: Ask, decision_id: DecisionId, rng: Random) -> Decision | Refusal:
        """The route of one request, or why it has none."""
        hits = self._hit_tokens(ask)
        decode = self._pick_decode(ask, hits)
        if decode is None:
            return self._refusal(ask)
        prefill = self._pick_prefill(ask, hits, decode)
        features = _features(ask.estimate, prefill, decode)
        choice = self._choose_path(ask.facts, features, prefill, decode, rng)
        return self._decision(ask, decision_id, features, choice, prefill, decode)

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
        pool = self._pool(ask, Role.DECODE, ask.exclude)
        if not pool:
            return None
        pin = rendezvous(ask.facts.session, pool) if ask.facts.session else None
        return self._pick(ask, pool, hits, self._policy.decode_placement, pin)

    def _pick_prefill(self, ask: Ask, hits: dict[WorkerId, int], decode: _Pick) -> _Pick | None:
        worker_id = decode.view.worker_id
        if self._fleet[worker_id].spec.splits:
            return decode
        exclude = ask.exclude if self._fleet[worker_id].spec.role is Role.DECODE else ask.exclude | {worker_id}
        pool = self._pool(ask, Role.PREFILL, exclude)
        return self._pick(ask, pool, hits, self._policy.prefill_placement) if pool else None

    def _pool(self, ask: Ask, role: Role, exclude: frozenset[WorkerId]) -> list[WorkerId]:
        members = self._members(ask.facts.model, role)
        offered = ask.facts.prefill_from if role is Role.PREFILL else None
        if exclude or offered is not None:
            members = [one for one in members if one not in exclude and (offered is None or one in offered)]
        # A prefill pool never panics: without a healthy prefill worker the request goes local.
        return self._health.routable(members, may_panic=role is Role.DECODE)

    def _members(self, model: str, role: Role) -> list[WorkerId]:
        """The workers of a role that serve a model; looked up anew only when the fleet has changed."""
        if self._pools_of != self._fleet.version:
            self._pools = {}
            self._pools_of = self._fleet.version
        members = self._pools.get((model, role))
        if members is None:
            specs = [state.spec for state in self._fleet]
            members = [spec.worker_id for spec in specs if spec.role in (role, Role.BOTH) and model in spec.models]
            # A client may ask for any name; only those that exist are remembered.
            if members:
                self._pools[model, role] = members
        return members

    def _pick(
        self,
        ask: Ask,
        pool: list[WorkerId],
        hits: dict[WorkerId, int],
        placement: Placement,
        pin: WorkerId | None = None,
    ) -> _Pick:
        views = self._fleet.views(pool, ask.now_s)
        hit_tokens = [hits.get(worker_id, 0) for worker_id in pool]
        candidates = Pool(views=views, hit_tokens=hit_tokens, isl_tokens=ask.estimate.isl_tokens)
        ranked = placement.rank(candidates, ask.facts.request_id, MAX_CANDIDATES)
        place = pool.index(pin or ranked[0].worker_id)
        view, hit = views[place], hit_tokens[place]
        return _Pick(replace(view, hit_tokens=hit) if hit else view, ranked, pinned=pin is not None)

    def _choose_path(
        self, facts: RequestFacts, features: Features, prefill: _Pick | None, decode: _Pick, rng: Random
    ) -> PathChoice:
        block = decode.view.kv_block_tokens or self._policy.default_kv_block_tokens
        forced = must_be_local(
            facts,
            features,
            block_tokens=block,
            has_prefiller=prefill is not None,
            # One that splits by itself holds no other worker's KV back.
            decode_ejected=prefill is not decode and not self._health.is_well(decode.view.worker_id),
        )
        if forced is not None:
            return forced
        assert prefill is not None
        question = PathQuestion(features=features, prefill=prefill.view, decode=decode.view)
        return self._policy.path.choose(question, rng)

    def _decision(
        self,
        ask: Ask,
        decision_id: DecisionId,
        features: Features,
        choice: PathChoice,
        prefill: _Pick | None,
        decode: _Pick,
    ) -> Decision:
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
            features=features,
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
