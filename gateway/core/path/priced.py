"""Paths, and routes, by price: what is expected of each, and what it takes from others.

The rule of this module: `PricedPolicy` compares the two paths of the workers that placement chose; `JointPolicy`
compares every decode worker by both paths, each with the prefill worker that is best for it. The same price decides.
Derived [D] (design.md: "beyond the papers").
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from gateway.core.forecast import Forecast, PrefillLeg
from gateway.core.path.base import PathPolicy, PathQuestion
from gateway.core.path.price import Load, PriceWeights, price
from gateway.core.placement import MAX_CANDIDATES
from gateway.core.record import record
from gateway.core.types import (
    Candidate,
    Features,
    Outlook,
    Path,
    PathChoice,
    Reason,
    SloTarget,
    WorkerId,
    WorkerView,
)


@record
class RouteQuestion:
    """One request, and all the workers that could serve it; each view says what is cached there."""

    isl_tokens: int
    osl_tokens: float
    slo: SloTarget
    now_s: float
    prefill: Sequence[WorkerView]
    """Empty where only the local path is possible."""
    decode: Sequence[WorkerView]
    """At least one."""
    forecast: Forecast
    is_first: bool = False
    """Whether a conversation begins with it."""


@record
class Route:
    """One way to serve a request."""

    path: Path
    prefill: WorkerView | None
    """The prefill worker; on the local path the one that the remote path would have used, if any."""
    decode: WorkerView
    outlook: Outlook
    price: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedPolicy:
    """The cheaper path of the workers that placement chose."""

    weights: PriceWeights = field(default_factory=PriceWeights)
    baseline: PathPolicy
    """Asked where the workers' prices are not known."""
    name: str = "priced"

    def choose(self, question: PathQuestion, rng: Random) -> PathChoice:
        """Predict both, price both."""
        forecast, slo = question.forecast, question.slo
        features = question.features
        if forecast is None or slo is None or not math.isfinite(features.osl_tokens):
            return self.baseline.choose(question, rng)
        route_question = RouteQuestion(
            isl_tokens=features.isl_tokens,
            osl_tokens=features.osl_tokens,
            slo=slo,
            now_s=question.now_s,
            prefill=(question.prefill,),
            decode=(question.decode,),
            forecast=forecast,
            is_first=question.is_first,
        )
        compared = routes(route_question, self.weights)
        return choice_of(min(compared, key=_by_price), compared, question.features)


@dataclass(frozen=True, slots=True, kw_only=True)
class JointPolicy:
    """The cheapest of all routes; it places too."""

    weights: PriceWeights = field(default_factory=PriceWeights)
    baseline: PathPolicy
    """Asked where the workers' prices are not known."""
    name: str = "joint"

    def choose(self, question: PathQuestion, rng: Random) -> PathChoice:
        """For workers that are given, as the priced policy does."""
        return PricedPolicy(weights=self.weights, baseline=self.baseline, name=self.name).choose(question, rng)

    def choose_route(self, question: RouteQuestion) -> tuple[Route, Sequence[Route]]:
        """The cheapest route, and all that were compared; equal ones by the workers' order."""
        compared = routes(question, self.weights)
        return min(compared, key=_by_price), compared


def routes(question: RouteQuestion, weights: PriceWeights) -> list[Route]:
    """Every decode worker by both paths; the local one first."""
    found: list[Route] = []
    forecast, isl, osl, now_s = question.forecast, question.isl_tokens, question.osl_tokens, question.now_s
    best = _best_prefill(question, weights)
    prefill = None if best is None else best[0]
    for view in question.decode:
        batch = forecast.decode(view, isl, osl)
        load, known = _load(question, view), forecast.of(view.worker_id)
        ways = [(Path.LOCAL, forecast.local(batch, isl, now_s), len(known.backlog))]
        if best is not None and best[0].worker_id != view.worker_id:
            waiting = len(forecast.of(best[0].worker_id).backlog)
            ways.append((Path.REMOTE, forecast.remote(batch, best[1], isl, osl, now_s), waiting))
        for path, outlook, waiting in ways:
            cost = price(
                outlook,
                load,
                question.slo,
                weights,
                is_local=path is Path.LOCAL,
                waiting=waiting,
                is_first=question.is_first,
            )
            if known.last_path not in (None, path):
                cost += weights.hysteresis
            found.append(Route(path, prefill, view, outlook, cost))
    return found


def choice_of(chosen: Route, compared: Sequence[Route], features: Features) -> PathChoice:
    """The chosen route as a path policy's answer, with the figures of the best route by each path in words."""
    best = {path: min((r for r in compared if r.path is path), key=_by_price, default=None) for path in Path}
    figures = ", ".join(
        f"{path} costs {route.price:.2f} (TTFT {route.outlook.ttft_s:.2f} s, TPOT {1e3 * route.outlook.tpot_s:.0f} ms)"
        for path, route in best.items()
        if route is not None
    )
    words = f"{figures}; {features.isl_tokens} prompt tokens"
    return PathChoice(path=chosen.path, reason=Reason.PRICE, words=words, outlook=chosen.outlook)


def candidates_of(compared: Sequence[Route]) -> list[Candidate]:
    """The best decode workers as a decision records them: 1.0 is a route that costs nothing."""
    by_worker: dict[WorkerId, list[Route]] = {}
    for route in compared:
        by_worker.setdefault(route.decode.worker_id, []).append(route)
    best = sorted(by_worker.values(), key=_least_price)[:MAX_CANDIDATES]
    return [_candidate(own) for own in best]


def _candidate(own: Sequence[Route]) -> Candidate:
    """The routes by one decode worker."""
    scores = tuple([(str(route.path), 1.0 / (1.0 + route.price)) for route in own])
    return Candidate(own[0].decode.worker_id, scores, max(score for _, score in scores))


def _best_prefill(question: RouteQuestion, weights: PriceWeights) -> tuple[WorkerView, PrefillLeg] | None:
    """The prefill worker that is done first, its own time priced; and when it is."""
    isl, now_s, forecast = question.isl_tokens, question.now_s, question.forecast
    legs = [(view, forecast.prefill_leg(view, isl, now_s)) for view in question.prefill]
    return min(legs, key=lambda leg: leg[1].done_s + weights.prefill_price * leg[1].prefill_s, default=None)


def _load(question: RouteQuestion, view: WorkerView) -> Load:
    capacity = view.kv_capacity_tokens
    needed = view.kv_tokens + question.isl_tokens + question.osl_tokens
    return Load(
        view.inflight_requests,
        view.resident_requests,
        question.osl_tokens,
        question.forecast.mean_osl_tokens,
        needed / capacity if capacity else None,
    )


def _by_price(route: Route) -> float:
    return route.price


def _least_price(own: Sequence[Route]) -> float:
    return min(route.price for route in own)
