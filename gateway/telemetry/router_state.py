"""What a scrape sees of the router.

The rule of this module: read-only; one pass over the workers per scrape.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from gateway.core.router import Router
from gateway.core.types import SloTarget, WorkerId
from gateway.telemetry.state import WorkerState

BURN_WINDOWS_S: Mapping[str, float] = MappingProxyType({"5m": 300.0, "1h": 3600.0})


class RouterState:
    """Reads a router for `gateway.telemetry.state.StateReader`."""

    def __init__(self, router: Router, clock: Callable[[], float]) -> None:
        self._router = router
        self._clock = clock

    def workers(self) -> Sequence[WorkerState]:
        """All known workers."""
        now_s = self._clock()
        return [self._worker(state.spec.worker_id, now_s) for state in self._router.fleet]

    def prefix_blocks(self) -> int:
        """Blocks in the prefix index, over all workers."""
        return len(self._router.prefix)

    def conversations(self) -> Mapping[str, int]:
        """Remembered conversations by whether a worker holds their KV."""
        book = self._router.conversations.book
        return {"warm": book.warm, "cold": len(book) - book.warm}

    def waiting_requests(self) -> int:
        """Requests that wait for room."""
        return len(self._router.waiting)

    def bytes_per_token(self) -> Mapping[str, float]:
        """Calibrated bytes of text per token, by model."""
        return self._router.calibration.models()

    def burn_rates(self) -> Mapping[tuple[str, str], float]:
        """Burn rate by (SLO name, window); absent where no request was judged."""
        slo, now_s = self._router.slo, self._clock()
        rates = {
            (name, window): slo.burn_rate(name, window_s, now_s)
            for name in slo.names()
            for window, window_s in BURN_WINDOWS_S.items()
        }
        return {key: rate for key, rate in rates.items() if rate is not None}

    def slos(self) -> Sequence[SloTarget]:
        """The SLOs of the policy in force, the default among them."""
        slo = self._router.policy.slo
        return (slo.default, *slo.classes)

    def slo_objective(self) -> float:
        """The share of judged requests that should meet their SLO."""
        return self._router.policy.slo_objective

    def policy(self) -> tuple[str, str]:
        """Name and version of the policy in force."""
        return self._router.policy.path.name, self._router.policy.version

    def _worker(self, worker_id: WorkerId, now_s: float) -> WorkerState:
        router = self._router
        health = router.health.get(worker_id)
        sample = router.fleet[worker_id].sample
        prefill_ratio, decode_ratio = self._price_ratios(worker_id)
        (view,) = router.fleet.views([worker_id], now_s)
        return WorkerState(
            worker_id=worker_id,
            role=health.role,
            state=health.state,
            draining=health.draining,
            inflight_requests=router.ledger.tally(worker_id).requests,
            inflight_tokens=router.ledger.tally(worker_id).kv_tokens,
            queue_depth=view.queue_depth,
            kv_used_ratio=view.kv_used_ratio,
            sample_age_s=None if sample is None else now_s - sample.at_s,
            prefill_price_ratio=prefill_ratio,
            decode_price_ratio=decode_ratio,
            conversation_tokens=router.conversations.book.held_tokens(worker_id),
        )

    def _price_ratios(self, worker_id: WorkerId) -> tuple[float | None, float | None]:
        forecast = self._router.forecast
        if forecast is None:
            return None, None
        worker = forecast.of(worker_id)
        return worker.backlog.correction, worker.decode_correction
