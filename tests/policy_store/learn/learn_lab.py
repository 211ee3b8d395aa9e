"""A world whose best table is known: requests of a few kinds, and a chance to meet the SLO by kind, load and path."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

from gateway.core.path.base import PathPolicy
from gateway.core.path.rules import AlwaysLocal, AlwaysRemote
from gateway.core.types import Features, Path, Reason
from policy_store.learn.environment import ServedRow
from tests.core.factories import question, view

LOCAL, REMOTE = Path.LOCAL, Path.REMOTE
BUSY_TOKENS = 20_000
"""The prefill backlog of every other request; the rest find none."""

Chance = Callable[[str, int, Path], float]
"""(kind, prefill backlog in tokens, path) -> probability of meeting the SLO."""


@dataclass(frozen=True)
class Kind:
    """Requests that look alike."""

    isl: int
    hit: int = 0
    osl: float = 200.0
    share: float = 1.0


@dataclass
class World:
    """Serves requests of its kinds; every request ends `late` calls after the one that routed it."""

    kinds: Mapping[str, Kind]
    chance: Chance
    seed: int = 0
    late: int = 0
    served: int = 0
    policies: list[PathPolicy] = field(default_factory=list)
    kv_resident_ratio: float | None = None
    _held: list[list[ServedRow]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._rng = Random(self.seed)
        self._choices = Random(self.seed + 1)

    def serve(self, policy: PathPolicy, requests: int) -> list[ServedRow]:
        self.policies.append(policy)
        self._held.append([self._serve_one(policy) for _ in range(requests)])
        return self._held.pop(0) if len(self._held) > self.late else []

    def _serve_one(self, policy: PathPolicy) -> ServedRow:
        names = list(self.kinds)
        (name,) = self._rng.choices(names, [self.kinds[each].share for each in names])
        kind = self.kinds[name]
        isl = max(1, round(kind.isl * self._rng.uniform(0.8, 1.25)))
        backlog = self._rng.choice((0, BUSY_TOKENS))
        batch = self._rng.randrange(20)
        asked = question(
            isl,
            decode_hit=round(isl * kind.hit / kind.isl),
            prefill=view("p0", prefill_tokens=backlog),
            decode=view("d0", inflight_requests=batch, kv_resident_ratio=self.kv_resident_ratio),
            osl=kind.osl * self._rng.uniform(0.8, 1.25),
        )
        luck = self._rng.random()
        choice = policy.choose(asked, self._choices)
        order = self.served
        self.served += 1
        return row(
            order,
            features=asked.features,
            backlog=backlog,
            batch=batch,
            path=choice.path,
            reason=choice.reason,
            cell=choice.cluster,
            propensity=choice.propensity,
            attained=luck < self.chance(name, backlog, choice.path),
        )


def row(
    order: int = 0,
    *,
    features: Features | None = None,
    backlog: int | None = 0,
    batch: int | None = 0,
    path: Path = LOCAL,
    reason: Reason = Reason.CLUSTER,
    cell: int | None = 0,
    propensity: float = 1.0,
    attained: bool | None = True,
) -> ServedRow:
    return ServedRow(
        order=order,
        features=features or Features(isl_tokens=100, prefill_isl_tokens=100, decode_isl_tokens=100, osl_tokens=10.0),
        prefill_backlog_tokens=backlog,
        decode_requests=batch,
        path=path,
        reason=reason,
        cell=cell,
        propensity=propensity,
        ttft_s=1.0,
        tpot_s=0.02,
        ok=True,
        attained=attained,
    )


KINDS = {"chat": Kind(isl=300, osl=150.0), "book": Kind(isl=9000, osl=150.0), "turn": Kind(isl=9000, hit=8500)}
BEST = {"chat": LOCAL, "book": REMOTE, "turn": LOCAL}
"""Of the world below."""


def static_chance(kind: str, backlog: int, path: Path) -> float:
    """The kind alone says which path is better."""
    del backlog
    return 0.9 if path is BEST[kind] else 0.5


def loaded_chance(kind: str, backlog: int, path: Path) -> float:
    """Long prompts go remote unless the prefill worker is busy."""
    best = LOCAL if kind != "book" or backlog > 0 else REMOTE
    return 0.9 if path is best else 0.4


def best_of(chance: Chance, kinds: Mapping[str, Kind] = KINDS) -> float:
    """What the best table attains."""
    total = sum(kind.share for kind in kinds.values())
    cells = [
        kind.share / total / 2 * max(chance(name, backlog, path) for path in Path)
        for name, kind in kinds.items()
        for backlog in (0, BUSY_TOKENS)
    ]
    return sum(cells)


def attained_by(policy: PathPolicy, chance: Chance, requests: int = 4000) -> float:
    rows = World(KINDS, chance, seed=99).serve(policy, requests)
    return sum(bool(each.attained) for each in rows) / len(rows)


BASELINES: Sequence[PathPolicy] = (AlwaysLocal(), AlwaysRemote())
