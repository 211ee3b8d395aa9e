"""What the gateway expects of its workers' time: how long prefills wait and take, and what a token takes there.

The rule of this module: it knows what was sent and what came back, and nothing that a gateway could not know. How far
its expectations were off is learned per worker and corrected for; the same figures say when prices no longer fit.
"""

from dataclasses import dataclass, field
from functools import lru_cache

from gateway.core.backlog import CORRECTION_BOUND, Backlog
from gateway.core.calibration import Calibration
from gateway.core.engine_costs import EngineCosts
from gateway.core.loads_elsewhere import OtherLoads
from gateway.core.record import record
from gateway.core.types import Decision, DecisionId, Outlook, Path, Role, WorkerId, WorkerView

MEMORY_ANSWERS = 64
"""About so many of the last answers make the correction of decode steps."""
LOCAL_MEMORY_S = 10.0
"""Over about so long is counted what share of a decode worker's time local prefills take."""
PRICES = 4096
"""So many are remembered of each kind and engine."""
MOST_LOCAL_SHARE = 0.9
"""No more is expected to be lost to local prefills: beyond it the worker is simply full."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetCosts:
    """The engines of both pools."""

    prefill: EngineCosts
    decode: EngineCosts

    def of(self, role: Role) -> EngineCosts:
        """A worker's engine; one that does both counts as a decode worker."""
        return self.prefill if role is Role.PREFILL else self.decode


@dataclass(slots=True)
class WorkerForecast:
    """What is expected of one worker."""

    backlog: Backlog = field(default_factory=Backlog)
    decode_correction: float = 1.0
    """What output tokens took of late over what they are priced at."""
    local_share: float = 0.0
    """Share of its time that local prefills took of late, as of `local_at_s`."""
    local_at_s: float = 0.0
    last_path: Path | None = None
    """Of the last request that went there."""

    def add_local(self, seconds: float, now_s: float) -> None:
        """A local prefill was sent here."""
        self.local_share = self.local_share_at(now_s) + seconds / LOCAL_MEMORY_S
        self.local_at_s = now_s

    def local_share_at(self, now_s: float) -> float:
        """Share of its time that local prefills take."""
        return self.local_share * max(0.0, 1.0 - (now_s - self.local_at_s) / LOCAL_MEMORY_S)

    def tpot_s(self, step_s: float, now_s: float) -> float:
        """What a token takes where a step takes `step_s` and local prefills take their share."""
        return step_s / (1.0 - min(MOST_LOCAL_SHARE, self.local_share_at(now_s)))

    def saw_tpot(self, priced_s: float, observed_s: float) -> None:
        """An answer ended, whose tokens were expected to take `priced_s` each before any correction.

        What is held against the answer must not be corrected itself: answers end many seconds after they were
        predicted, and a correction that is driven by errors so old swings ever further.
        """
        moved = self.decode_correction + (observed_s / priced_s - self.decode_correction) / MEMORY_ANSWERS
        self.decode_correction = min(CORRECTION_BOUND, max(1.0 / CORRECTION_BOUND, moved))


@record
class _Promise:
    """What was expected of a request that is under way."""

    outlook: Outlook
    priced_tpot_s: float
    """Its TPOT before it was corrected."""


@record
class PrefillLeg:
    """A prompt at a prefill worker."""

    done_s: float
    """Until its KV is there."""
    prefill_s: float
    """Of that, its own share of the worker's time."""
    prefill_j: float
    """Joules beyond idling; see `Outlook`."""


_UNKNOWN = WorkerForecast()


class _Prices:
    """One pool's engine, whose prices never change: most workers are asked about as they were a request ago."""

    __slots__ = ("costs", "decode_step_s", "prefill_s")

    def __init__(self, costs: EngineCosts) -> None:
        self.costs = costs
        self.decode_step_s = lru_cache(maxsize=PRICES)(costs.decode_step_s)
        self.prefill_s = lru_cache(maxsize=PRICES)(costs.prefill_s)


class Forecast:
    """Expectations by worker, corrected by what was seen.

    Args:
        costs: the engines' prices.
        calibration: knows how long answers are.
        elsewhere: what other replicas have in flight; None: nobody tells.
    """

    def __init__(self, costs: FleetCosts, calibration: Calibration, elsewhere: OtherLoads | None = None) -> None:
        self.costs = costs
        self._calibration = calibration
        self._elsewhere = elsewhere
        self._prefill, self._decode = _Prices(costs.prefill), _Prices(costs.decode)
        self._workers: dict[WorkerId, WorkerForecast] = {}
        self._promised: dict[DecisionId, _Promise] = {}

    @property
    def mean_osl_tokens(self) -> float:
        """The mean length of the last answers, of whatever model and worker."""
        return self._calibration.mean_osl_tokens

    def of(self, worker_id: WorkerId) -> WorkerForecast:
        """One worker's expectations, to be read; nothing is known of a new one."""
        return self._workers.get(worker_id, _UNKNOWN)

    def forget(self, worker_id: WorkerId) -> None:
        """The worker left."""
        self._workers.pop(worker_id, None)

    def decode(self, decode: WorkerView, isl_tokens: int, osl_tokens: float) -> "DecodeOutlook":
        """What one more sequence finds and does in a decode worker's batch, apart from prefills."""
        step_s = self._of(decode.role).decode_step_s
        correction = self.of(decode.worker_id).decode_correction
        batch, context = decode.inflight_requests, decode.kv_tokens
        priced_s = step_s(batch, context)
        after_s = step_s(batch + 1, context + isl_tokens + round(osl_tokens / 2))
        return DecodeOutlook(decode, priced_s, priced_s * correction, after_s * correction)

    def local(self, batch: "DecodeOutlook", isl_tokens: int, now_s: float) -> Outlook:
        """Prefill on the decode worker itself, behind the prefills that were sent there before."""
        view = batch.view
        prices, worker = self._of(view.role), self.of(view.worker_id)
        costs, hit = prices.costs, view.hit_tokens
        new_tokens = max(1, isl_tokens - hit)
        priced_s = prices.prefill_s(new_tokens, hit, decodes=view.inflight_requests, context_tokens=view.kv_tokens)
        prefill_s = worker.backlog.correction * priced_s
        queue_s = self._queue_s(view, worker.backlog, now_s)
        return Outlook(
            costs.arrival_s(isl_tokens) + queue_s + batch.before_s / 2 + prefill_s,
            worker.tpot_s(batch.after_s, now_s),
            prefill_s,
            max(0.0, prefill_s - batch.before_s),
            batch.crowd_s,
            # What a prefill waits for beyond its price takes no energy of its own.
            costs.prefill_j(priced_s, batch.priced_s),
        )

    def prefill_leg(self, prefill: WorkerView, isl_tokens: int, now_s: float) -> PrefillLeg:
        """What a prompt finds and takes at a prefill worker."""
        prices, backlog = self._of(prefill.role), self.of(prefill.worker_id).backlog
        costs, hit = prices.costs, prefill.hit_tokens
        priced_s = prices.prefill_s(max(1, isl_tokens - hit), hit)
        prefill_s = backlog.correction * priced_s
        done_s = costs.arrival_s(isl_tokens) + self._queue_s(prefill, backlog, now_s) + prefill_s
        return PrefillLeg(done_s, prefill_s, costs.prefill_j(priced_s, 0.0))

    def remote(
        self, batch: "DecodeOutlook", leg: PrefillLeg, isl_tokens: int, osl_tokens: float, now_s: float
    ) -> Outlook:
        """Prefill on a prefill worker, whose `leg` was asked for before, then transfer and decode."""
        view = batch.view
        costs, worker = self.costs.of(view.role), self.of(view.worker_id)
        there_s = leg.done_s + costs.arrival_s(isl_tokens) + costs.transfer_s(isl_tokens - view.hit_tokens)
        ttft_s = there_s + batch.before_s / 2 + batch.after_s
        # Local prefills that were sent there before and are not through by then hold it up like all others.
        left_s = max(0.0, self._queue_s(view, worker.backlog, now_s) - ttft_s) / max(1.0, osl_tokens)
        tpot_s, stall_s = worker.tpot_s(batch.after_s, now_s) + left_s, 0.0
        return Outlook(ttft_s, tpot_s, leg.prefill_s, stall_s, batch.crowd_s, leg.prefill_j)

    def sent(self, decision: Decision, now_s: float) -> None:
        """A decision was made, and with it something was expected."""
        outlook = decision.outlook
        if outlook is None:
            return
        place = self._own(decision.prefill_worker or decision.decode_worker)
        place.backlog.add(decision.decision_id, outlook.prefill_s / place.backlog.correction, now_s)
        decode = self._own(decision.decode_worker)
        self._promised[decision.decision_id] = _Promise(outlook, outlook.tpot_s / decode.decode_correction)
        decode.last_path = decision.path
        if decision.path is Path.LOCAL:
            decode.add_local(outlook.stall_s, now_s)

    def prefilled(self, decision: Decision, now_s: float) -> None:
        """Its prefill has ended well."""
        if decision.decision_id in self._promised:
            place = decision.prefill_worker or decision.decode_worker
            self._own(place).backlog.ended(decision.decision_id, now_s)

    def ended(self, decision: Decision, now_s: float, tpot_s: float | None) -> None:
        """The request is over; `tpot_s` is what it had, where it went well and made enough tokens to tell."""
        promise = self._promised.pop(decision.decision_id, None)
        if promise is None:
            return
        self._own(decision.prefill_worker or decision.decode_worker).backlog.drop(decision.decision_id, now_s)
        if tpot_s is not None and promise.priced_tpot_s > 0:
            self._own(decision.decode_worker).saw_tpot(promise.priced_tpot_s, tpot_s)

    def _queue_s(self, view: WorkerView, backlog: Backlog, now_s: float) -> float:
        """Until the worker is through with all prefills that were sent there, the other replicas' too."""
        tokens = 0 if self._elsewhere is None else self._elsewhere.prefill_tokens(view.worker_id, now_s)
        if not tokens:
            return backlog.seconds(now_s)
        # Nobody says of how many prompts: priced as steps that are full, none of which has much before it.
        prices = self._of(view.role)
        full = prices.costs.max_batched_tokens
        return backlog.seconds(now_s) + backlog.correction * prices.prefill_s(full, 0) * tokens / full

    def _of(self, role: Role) -> "_Prices":
        return self._prefill if role is Role.PREFILL else self._decode

    def _own(self, worker_id: WorkerId) -> WorkerForecast:
        known = self._workers.get(worker_id)
        if known is None:
            known = self._workers[worker_id] = WorkerForecast()
        return known


@record
class DecodeOutlook:
    """A decode worker's batch before and after one more sequence."""

    view: WorkerView
    priced_s: float
    """What a step without it is priced at, before any correction."""
    before_s: float
    """Seconds of a step without it."""
    after_s: float
    """Seconds of a step with it."""

    @property
    def crowd_s(self) -> float:
        """Seconds that every sequence loses by it, per token."""
        return max(0.0, self.after_s - self.before_s) if self.before_s else 0.0
