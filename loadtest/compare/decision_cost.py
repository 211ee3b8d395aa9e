"""What a decision costs in microseconds, part by part.

The rule of this module: it times the code that decides in production, on requests of the workload; nothing is asserted
about a time, as it is the machine's.
"""

import time
from collections.abc import Callable, Sequence
from random import Random

import numpy as np

from gateway.core.calibration import Calibration
from gateway.core.features import estimate
from gateway.core.forecast import Forecast
from gateway.core.path.base import PathQuestion
from gateway.core.path.priced import JointPolicy, PricedPolicy, RouteQuestion
from gateway.core.path.rules import DynamoRule
from gateway.core.path.table import KMeans, Scaler, TablePolicy
from gateway.core.types import Endpoint, Features, Path, RequestFacts, RequestId, Role, WorkerId, WorkerView
from loadtest.compare.cells import Place
from loadtest.compare.results import DecisionCost
from loadtest.learning.prices import fleet_costs
from loadtest.traces.types import TraceRequest
from policy_store.learn.clusters import ClusterPlan, fit_clusters

CLUSTERS = (8, 32)
REPEATS = 3
WORKERS = 2
"""Of each pool, where whole routes are compared."""
BATCH, BACKLOG_TOKENS, CONTEXT_TOKENS = 24, 9000, 150_000
"""A worker that is as busy as workers are at a load of 100 %."""

Call = Callable[[int], object]


def decision_costs(place: Place, requests: Sequence[TraceRequest]) -> list[DecisionCost]:
    """Every part of a decision."""
    found = [_timed("feature extraction", _extraction(requests), len(requests))]
    features = [_features(request) for request in requests]
    questions = [_question(place, each) for each in features]
    for clusters in CLUSTERS:
        table = _table(features, clusters)
        found += [
            _timed(
                f"assignment, K {clusters}",
                lambda n, by=table: by.clusters.assign(by.scaler.transform(features[n])),  # type: ignore[misc]
                len(requests),
            ),
            _timed(f"look-up, K {clusters}: guards, assignment and words", _choice(table, questions), len(requests)),
        ]
    priced, joint = PricedPolicy(baseline=DynamoRule()), JointPolicy(baseline=DynamoRule())
    routes = [_route_question(place, each) for each in features]
    return [
        *found,
        _timed("Dynamo's rule", _choice(DynamoRule(), questions), len(requests)),
        _timed("priced: two paths", _choice(priced, questions), len(requests)),
        _timed(f"joint: {WORKERS} x {WORKERS} workers", lambda n: joint.choose_route(routes[n]), len(requests)),
    ]


def _timed(part: str, call: Call, calls: int) -> DecisionCost:
    """Call by call, so that a percentile is one of calls."""
    times = []
    for _ in range(REPEATS):
        for place in range(calls):
            began_ns = time.perf_counter_ns()
            call(place)
            times.append(time.perf_counter_ns() - began_ns)
    p50, p99 = np.percentile(times, (50, 99)) / 1e3
    return DecisionCost(part=part, p50_us=float(p50), p99_us=float(p99), calls=len(times))


def _extraction(requests: Sequence[TraceRequest]) -> Call:
    calibration = Calibration()
    facts = [_facts(request) for request in requests]

    def extract(place: int) -> Features:
        found = estimate(facts[place], calibration)
        return Features(
            isl_tokens=found.isl_tokens,
            prefill_isl_tokens=found.isl_tokens - found.hit_tokens(1),
            decode_isl_tokens=found.isl_tokens - found.hit_tokens(2),
            osl_tokens=found.osl_tokens,
        )

    return extract


def _choice(policy: DynamoRule | TablePolicy | PricedPolicy, questions: Sequence[PathQuestion]) -> Call:
    rng = Random(0)  # noqa: S311 (not a secret)
    return lambda place: policy.choose(questions[place], rng)


def _facts(request: TraceRequest) -> RequestFacts:
    return RequestFacts(
        request_id=RequestId(str(request.index)),
        endpoint=Endpoint.CHAT,
        model="model",
        prompt_bytes=4 * request.input_tokens,
        max_output_tokens=request.output_tokens,
    )


def _features(request: TraceRequest) -> Features:
    prompt = request.input_tokens
    return Features(
        isl_tokens=prompt,
        prefill_isl_tokens=max(0, prompt - 512),
        decode_isl_tokens=max(0, prompt - 1024),
        osl_tokens=float(request.output_tokens),
    )


def _view(place: Place, role: Role, number: int) -> WorkerView:
    prefills = role is Role.PREFILL
    return WorkerView(
        worker_id=WorkerId(f"{role}-{number}"),
        role=role,
        inflight_requests=2 if prefills else BATCH,
        resident_requests=2 if prefills else BATCH,
        prefill_tokens=BACKLOG_TOKENS if prefills else 0,
        kv_tokens=CONTEXT_TOKENS,
        kv_capacity_tokens=3 * CONTEXT_TOKENS,
        kv_used_ratio=1 / 3,
        kv_resident_ratio=1 / 3,
        queue_depth=0,
        hit_tokens=512,
        max_batched_tokens=fleet_costs(place.engine).of(role).max_batched_tokens,
        kv_block_tokens=64,
    )


def _question(place: Place, features: Features) -> PathQuestion:
    return PathQuestion(
        features=features,
        prefill=_view(place, Role.PREFILL, 0),
        decode=_view(place, Role.DECODE, 0),
        slo=place.slo,
        forecast=Forecast(fleet_costs(place.engine), Calibration()),
    )


def _route_question(place: Place, features: Features) -> RouteQuestion:
    return RouteQuestion(
        isl_tokens=features.isl_tokens,
        osl_tokens=features.osl_tokens,
        slo=place.slo,
        now_s=0.0,
        prefill=[_view(place, Role.PREFILL, number) for number in range(WORKERS)],
        decode=[_view(place, Role.DECODE, number) for number in range(WORKERS)],
        forecast=Forecast(fleet_costs(place.engine), Calibration()),
    )


def _table(features: Sequence[Features], clusters: int) -> TablePolicy:
    """A table of exactly so many clusters: where fewer come out, the last of them is repeated."""
    fitted = fit_clusters(features, ClusterPlan(k=clusters, min_share=0.0), seed=0)
    centres = fitted.model.centroids if isinstance(fitted.model, KMeans) else fitted.model.means
    centres = centres + (centres[-1],) * (clusters - len(centres))
    scaler = Scaler(mean=fitted.scaler.mean, std=fitted.scaler.std)
    actions = tuple(Path.LOCAL if number % 2 else Path.REMOTE for number in range(clusters))
    return TablePolicy(scaler=scaler, clusters=KMeans(centroids=centres), actions=actions, baseline=DynamoRule())
