"""Service level objectives: which one a request has, whether it was met, and how fast the budget burns.

The rule of this module: a request is judged once, on what the client saw. A request that the client gave up before
its bound had passed is not judged.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from gateway.core.types import OutcomeKind, Path, RequestFacts, SloDefaults, SloTarget

BUCKET_S = 10.0
"""Resolution of the burn-rate windows."""


def target_for(facts: RequestFacts, slo: SloDefaults) -> SloTarget:
    """The request's target: its class (header, else model, else default), with bounds given by header on top.

    A class that does not exist is as good as none.
    """
    base = _class_of(facts, slo) if slo.classes else slo.default
    if facts.slo_ttft_s is None and facts.slo_tpot_s is None:
        return base
    return replace(
        base,
        ttft_s=base.ttft_s if facts.slo_ttft_s is None else facts.slo_ttft_s,
        tpot_s=base.tpot_s if facts.slo_tpot_s is None else facts.slo_tpot_s,
    )


def _class_of(facts: RequestFacts, slo: SloDefaults) -> SloTarget:
    classes = {known.name: known for known in slo.classes}
    of_model = classes.get(dict(slo.by_model).get(facts.model, ""), slo.default)
    return classes.get(facts.slo_class or "", of_model)


def attained(
    target: SloTarget,
    *,
    kind: OutcomeKind,
    duration_s: float,
    ttft_s: float | None,
    tpot_s: float | None,
    output_tokens: int | None,
) -> bool | None:
    """Whether the target was met (methods.md 1.2); None where that cannot be said.

    A stream is judged on its TTFT and TPOT. An answer that came whole shows neither, so it is held to the sum of
    both budgets: TTFT plus TPOT for every further token [D].
    """
    if kind in (OutcomeKind.CLIENT_ERROR, OutcomeKind.REFUSED):
        return None
    if kind is OutcomeKind.CANCELLED:
        late = ttft_s is None and target.ttft_s is not None and duration_s > target.ttft_s
        return False if late else None
    if kind is not OutcomeKind.OK:
        return False
    if ttft_s is None:
        return _whole_answer_attained(target, duration_s, output_tokens)
    return _within(ttft_s, target.ttft_s) and _within(tpot_s, target.tpot_s)


def _whole_answer_attained(target: SloTarget, duration_s: float, output_tokens: int | None) -> bool | None:
    if target.ttft_s is None or target.tpot_s is None:
        return None
    further_tokens = max(0, (output_tokens or 1) - 1)
    return duration_s <= target.ttft_s + target.tpot_s * further_tokens


def _within(value: float | None, bound: float | None) -> bool:
    return bound is None or value is None or value <= bound


@dataclass(slots=True)
class _Bucket:
    start_s: float
    met: int = 0
    missed: int = 0


@dataclass(slots=True)
class SloLedger:
    """Attainment per class and path since the start, and burn rates over sliding windows."""

    objective: float = 0.99
    """The share of requests that should meet their target."""
    keep_s: float = 3600.0
    met: dict[tuple[str, Path], int] = field(default_factory=dict)
    missed: dict[tuple[str, Path], int] = field(default_factory=dict)
    _buckets: dict[str, deque[_Bucket]] = field(default_factory=dict)

    def count(self, name: str, path: Path, is_met: bool, now_s: float) -> None:
        """Count one judged request."""
        side = self.met if is_met else self.missed
        side[name, path] = side.get((name, path), 0) + 1
        bucket = self._bucket(name, now_s)
        if is_met:
            bucket.met += 1
        else:
            bucket.missed += 1

    def burn_rate(self, name: str, window_s: float, now_s: float) -> float | None:
        """How many times faster than allowed the error budget is spent; None without requests in the window."""
        recent = [b for b in self._buckets.get(name, ()) if b.start_s > now_s - window_s - BUCKET_S]
        missed = sum(b.missed for b in recent)
        total = missed + sum(b.met for b in recent)
        return missed / total / (1.0 - self.objective) if total else None

    def names(self) -> Iterator[str]:
        """The classes that have been judged."""
        return iter(self._buckets)

    def _bucket(self, name: str, now_s: float) -> _Bucket:
        buckets = self._buckets.setdefault(name, deque())
        start_s = now_s - now_s % BUCKET_S
        if not buckets or buckets[-1].start_s < start_s:
            buckets.append(_Bucket(start_s))
            while buckets[0].start_s < start_s - self.keep_s:
                buckets.popleft()
        return buckets[-1]
