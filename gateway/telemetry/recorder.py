"""Counting what the gateway does.

The rule of this module: one `record()` per request, when it has ended, updates every per-request metric. What
happens more often (the events of a stream) or elsewhere (a failed leg, a retry) has a method of its own.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from prometheus_client.samples import Sample

from gateway.core.conversation.facts import TurnKind
from gateway.core.types import (
    Decision,
    Outcome,
    OutcomeKind,
    Path,
    Refusal,
    RefusalKind,
    SloTarget,
    WorkerId,
)
from gateway.telemetry import metrics
from gateway.telemetry.alike import Alike, AlikeFamilies
from gateway.telemetry.first_text import FirstTexts
from gateway.telemetry.labels import (
    MODEL_CAP,
    NO_MODEL,
    NO_PATH,
    LabelCap,
    Leg,
    MissedBound,
    UpstreamErrorKind,
)
from gateway.telemetry.metrics import MetricSpec
from gateway.telemetry.series import CounterSeries, Family, GaugeSeries, HistogramSeries
from policy_store.faults import BundleFault

MOST_KEPT: Final = 10_000
"""Combinations of which the series are kept at hand; beyond it they are all looked up anew."""

AnyFamily = Family[CounterSeries] | Family[GaugeSeries] | Family[HistogramSeries]


class Metrics:
    """The gateway's counters and histograms since its start.

    `slos` are the configured objectives, as for `follow_slos`. All methods are called on the event loop's thread.
    """

    def __init__(self, *, slos: Iterable[SloTarget] = (), model_cap: int = MODEL_CAP) -> None:
        self._models: Final = LabelCap(model_cap)
        self._begun: Final[set[str]] = set()
        self._families: Final[dict[MetricSpec, AnyFamily]] = {}
        self._requests: Final = self._counter(metrics.REQUESTS)
        self._duration: Final = self._histogram(metrics.REQUEST_DURATION)
        ttft = self._histogram(metrics.TTFT)
        self._itl: Final = self._histogram(metrics.ITL)
        tpot = self._histogram(metrics.TPOT)
        self._prefill_leg: Final = self._histogram(metrics.PREFILL_LEG)
        self._decision: Final = self._histogram(metrics.DECISION).labels()
        self._predicted_hit: Final = self._histogram(metrics.PREDICTED_HIT).labels()
        self._actual_cached: Final = self._histogram(metrics.ACTUAL_CACHED).labels()
        tokens = self._counter(metrics.TOKENS)
        self._output_length: Final = self._histogram(metrics.OUTPUT_LENGTH)
        self._inflight: Final = self._gauge(metrics.INFLIGHT)
        self._inflight_of: Final[dict[str, GaugeSeries]] = {}
        self._paths: Final = self._counter(metrics.PATHS)
        self._turns: Final = self._counter(metrics.CONVERSATION_TURNS)
        self._transfers: Final = self._counter(metrics.CONVERSATION_TRANSFERS).labels()
        self._first_text: Final = self._histogram(metrics.CONVERSATION_FIRST_TEXT).labels()
        self._first_texts: Final = FirstTexts()
        self._prefill_energy: Final = self._counter(metrics.PREFILL_ENERGY)
        self._worker_selected: Final = self._counter(metrics.WORKER_SELECTED)
        self._refusals: Final = self._counter(metrics.REFUSALS)
        self._retries: Final = self._counter(metrics.RETRIES)
        self._upstream_errors: Final = self._counter(metrics.UPSTREAM_ERRORS)
        self._policy_refused: Final = self._counter(metrics.POLICY_REFUSED)
        self._slo_attained: Final = self._counter(metrics.SLO_ATTAINED)
        self._slo_missed: Final = self._counter(metrics.SLO_MISSED)
        self._alike_families: Final = AlikeFamilies(
            requests=self._requests, duration=self._duration, ttft=ttft, tpot=tpot, tokens=tokens
        )
        self._alike: Final[dict[tuple[str, str, str, str], Alike]] = {}
        self._choices: Final[dict[tuple[str | None, ...], tuple[CounterSeries, ...]]] = {}
        """What choices are counted in; emptied with every look at who is still there."""
        self._start_at_zero()
        self.follow_slos(slos)

    def record(
        self,
        routed: Decision | Refusal | None,
        outcome: Outcome,
        *,
        model_label: str,
        decision_s: float | None = None,
        prefill_leg_s: float | None = None,
        first_text_s: float | None = None,
    ) -> None:
        """Count one request that has ended.

        `routed` is the last decision, or the core's refusal, or None where the request never got to the core;
        `model_label` the model that the client asked for (any text: it is capped here); `decision_s` the time
        that the core took; `prefill_leg_s` the time of the prefill leg, where there was one; `first_text_s` the
        time to the first text that a user sees, where the answer showed any.
        """
        if decision_s is not None:
            self._decision.observe(decision_s)
        if isinstance(routed, Decision):
            self._count_routed(routed, outcome, model_label, prefill_leg_s)
            if routed.turn is not None or routed.conversation is not None:
                self._count_turn(routed, outcome, first_text_s)
        else:
            self._count_unrouted(routed, outcome, self._models.known(model_label))

    def retried(self, given_up: Decision, cause: UpstreamErrorKind, *, decision_s: float | None = None) -> None:
        """Count an attempt that was given up for another one; the last attempt is counted by `record()`."""
        self._retries.labels(cause).inc()
        self._count_choice(given_up)
        if decision_s is not None:
            self._decision.observe(decision_s)

    def upstream_error(self, worker_id: WorkerId, kind: UpstreamErrorKind) -> None:
        """Count a failed leg."""
        self._upstream_errors.labels(worker_id, kind).inc()

    def policy_refused(self, fault: BundleFault) -> None:
        """Count a bundle of the policy store that was not put in force."""
        self._policy_refused.labels(fault).inc()

    def itl(self, model_label: str) -> HistogramSeries:
        """The inter-token histogram of a routed model, to keep for a stream and tell every gap in seconds."""
        return self._itl.labels(self._models.admit(model_label))

    def inflight(self, model_label: str) -> GaugeSeries:
        """The in-flight gauge of a routed model: `inc()` as a request is sent, `dec()` once as it ends."""
        return self._inflight_of.get(model_label) or self._find_inflight(model_label)

    def follow_workers(self, workers: Iterable[WorkerId]) -> None:
        """Drop the series of workers not among `workers`; the error counts of those that are start at zero."""
        known = frozenset(workers)
        for spec, family in self._families.items():
            if spec.per_worker:
                family.keep("worker", known)
        self._choices.clear()
        for worker in sorted(known):
            for kind in UpstreamErrorKind:
                self._upstream_errors.labels(worker, kind)

    def follow_slos(self, slos: Iterable[SloTarget]) -> None:
        """Let the counts of these SLOs start at zero where there are none yet; those of other SLOs stay."""
        for slo in slos:
            for path in Path:
                self._slo_attained.labels(slo.name, path)
                for bound in MissedBound:
                    self._slo_missed.labels(slo.name, path, bound)

    def samples(self) -> Mapping[MetricSpec, Iterator[Sample]]:
        """Every series by metric, read as the iterators run."""
        return {spec: family.samples() for spec, family in self._families.items()}

    def _count_unrouted(self, refusal: Refusal | None, outcome: Outcome, model: str) -> None:
        if refusal is not None:
            self._refusals.labels(refusal.kind).inc()
        self._requests.labels(model, NO_MODEL, NO_PATH, outcome.kind).inc()
        self._duration.labels(model, outcome.kind).observe(outcome.duration_s)

    def _count_routed(
        self, decision: Decision, outcome: Outcome, model_label: str, prefill_leg_s: float | None
    ) -> None:
        key = (model_label, decision.model, decision.path, outcome.kind)
        alike = self._alike.get(key) or self._find_alike(key)
        alike.count(outcome)
        self._count_choice(decision)
        self._count_hits(decision, outcome)
        if outcome.attained is not None:
            self._count_slo(decision, outcome, is_met=outcome.attained)
        if prefill_leg_s is not None:
            self._prefill_leg.labels(alike.model).observe(prefill_leg_s)
        if decision.outlook is not None and decision.outlook.prefill_j:
            self._prefill_energy.labels(decision.path).inc(decision.outlook.prefill_j)
        if decision.osl_predicted and outcome.kind is OutcomeKind.OK and outcome.output_tokens:
            self._output_length.labels(alike.model).observe(decision.features.osl_tokens / outcome.output_tokens)

    def _count_choice(self, decision: Decision) -> None:
        workers = decision.decode_worker, decision.prefill_worker
        key = (decision.path, decision.reason, decision.policy, *workers)
        for series in self._choices.get(key) or self._find_choice(decision, key):
            series.value += 1.0

    def _count_turn(self, decision: Decision, outcome: Outcome, first_text_s: float | None) -> None:
        waited_s = self._first_texts.ended(decision, outcome, first_text_s)
        if waited_s is not None:
            self._first_text.observe(waited_s)
        if decision.turn is not None:
            self._turns.labels(decision.turn).inc()
            if decision.path is Path.REMOTE:
                self._transfers.inc()

    def _count_hits(self, decision: Decision, outcome: Outcome) -> None:
        isl_tokens = decision.features.isl_tokens
        if isl_tokens > 0:
            on_prefill = decision.path is Path.REMOTE
            hit_tokens = decision.prefill_hit_tokens if on_prefill else decision.decode_hit_tokens
            self._predicted_hit.observe(hit_tokens / isl_tokens if hit_tokens < isl_tokens else 1.0)
        cached_tokens, input_tokens = outcome.cached_tokens, outcome.input_tokens
        if cached_tokens is not None and input_tokens:
            self._actual_cached.observe(cached_tokens / input_tokens if cached_tokens < input_tokens else 1.0)

    def _count_slo(self, decision: Decision, outcome: Outcome, *, is_met: bool) -> None:
        name, path = decision.slo.name, decision.path
        if is_met:
            self._slo_attained.labels(name, path).inc()
        else:
            self._slo_missed.labels(name, path, missed_bound(decision.slo, outcome)).inc()

    def _find_inflight(self, model_label: str) -> GaugeSeries:
        model = self._models.admit(model_label)
        found = self._inflight.labels(model)
        # Others than these are without number.
        if model == model_label:
            self._inflight_of[model] = found
        return found

    def _find_alike(self, key: tuple[str, str, str, str]) -> Alike:
        model_label, served_model, path, outcome = key
        model = self._begin_model(model_label, served_model)
        if len(self._alike) >= MOST_KEPT:
            self._alike.clear()
        served = self._models.admit(served_model)
        found = Alike(self._alike_families, model=model, served_model=served, path=path, outcome=outcome)
        self._alike[key] = found
        return found

    def _find_choice(self, decision: Decision, key: tuple[str | None, ...]) -> tuple[CounterSeries, ...]:
        if len(self._choices) >= MOST_KEPT:
            self._choices.clear()
        selected = self._worker_selected.labels
        found = [
            self._paths.labels(decision.path, decision.reason),
            selected(decision.decode_worker, Leg.DECODE, decision.policy),
        ]
        if decision.prefill_worker is not None:
            found.append(selected(decision.prefill_worker, Leg.PREFILL, decision.policy))
        self._choices[key] = tuple(found)
        return self._choices[key]

    def _begin_model(self, model: str, served_model: str) -> str:
        label = self._models.admit(model)
        if label not in self._begun:
            self._begun.add(label)
            served = self._models.admit(served_model)
            for path in Path:
                for kind in OutcomeKind:
                    self._requests.labels(label, served, path, kind)
        return label

    def _start_at_zero(self) -> None:
        for refusal in RefusalKind:
            self._refusals.labels(refusal)
        for cause in UpstreamErrorKind:
            self._retries.labels(cause)
        for fault in BundleFault:
            self._policy_refused.labels(fault)
        for turn in TurnKind:
            self._turns.labels(turn)
        for path in Path:
            self._prefill_energy.labels(path)

    def _counter(self, spec: MetricSpec) -> Family[CounterSeries]:
        family = Family(spec.full_name, spec.labels, CounterSeries)
        self._families[spec] = family
        return family

    def _gauge(self, spec: MetricSpec) -> Family[GaugeSeries]:
        family = Family(spec.full_name, spec.labels, GaugeSeries)
        self._families[spec] = family
        return family

    def _histogram(self, spec: MetricSpec) -> Family[HistogramSeries]:
        family = Family(spec.full_name, spec.labels, lambda: HistogramSeries(spec.buckets))
        self._families[spec] = family
        return family


def missed_bound(slo: SloTarget, outcome: Outcome) -> MissedBound:
    """Which bound a request that missed its SLO went over, as `gateway.core.slo` judges.

    A cancelled request can only have missed its TTFT; an answer that came whole is held to the sum of both.
    """
    if outcome.kind is OutcomeKind.CANCELLED:
        return MissedBound.TTFT
    if outcome.kind is not OutcomeKind.OK:
        return MissedBound.FAILED
    is_late = _over(outcome.ttft_s, slo.ttft_s)
    is_slow = _over(outcome.tpot_s, slo.tpot_s)
    if is_late is is_slow:
        return MissedBound.BOTH
    return MissedBound.TTFT if is_late else MissedBound.TPOT


def _over(value: float | None, bound: float | None) -> bool:
    return value is not None and bound is not None and value > bound
