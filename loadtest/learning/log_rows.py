"""From a gateway's decision log to a learner's rows.

The rule of this module: a request's loads follow from the requests before it that had not ended, so its row is given
once all of those have; rows come in order of arrival. Times are turned into engine seconds.
"""

from dataclasses import dataclass

from gateway.core.slo import attained
from gateway.core.types import Decision, OutcomeKind, Path, SloTarget, WorkerId
from gateway.wire.decision_record import DecisionRecord
from policy_store.learn.environment import ServedRow


@dataclass(frozen=True, slots=True, kw_only=True)
class _Busy:
    """What one request took, in the log's seconds."""

    prefill_worker: WorkerId
    prefill_tokens: int
    prefilled_s: float
    """When its first token came: the log does not say when the prefill leg ended, which was a moment before."""
    decode_worker: WorkerId
    ended_s: float


class LogRows:
    """Collects records as they come and gives rows in order of arrival.

    Args:
        slo: in engine seconds; the gateway's own verdict is in real ones.
        speed: engine seconds per real second.
    """

    def __init__(self, slo: SloTarget, speed: float) -> None:
        self._slo = slo
        self._speed = speed
        self._waiting: dict[int, DecisionRecord | None] = {}
        self._next = 0
        self._busy: list[_Busy] = []

    @property
    def next_order(self) -> int:
        """The first request whose row is still to come."""
        return self._next

    def add(self, order: int, record: DecisionRecord) -> None:
        """A request has ended."""
        self._waiting[order] = record

    def skip(self, order: int) -> None:
        """A request never came to the log: the gateway did not get it."""
        self._waiting.setdefault(order, None)

    def take(self) -> list[ServedRow]:
        """The rows of all requests of which every earlier one has ended too, once each."""
        rows = []
        while self._next in self._waiting:
            record = self._waiting.pop(self._next)
            if record is not None and record.decision is not None:
                rows.append(self._row(self._next, record, record.decision))
            self._next += 1
        return rows

    def _row(self, order: int, record: DecisionRecord, decision: Decision) -> ServedRow:
        outcome, at_s, speed = record.outcome, record.arrived_at_s, self._speed
        self._busy = [busy for busy in self._busy if busy.ended_s > at_s]
        prefill_worker = _prefill_worker(decision)
        duration_s = outcome.duration_s * speed
        ttft_s = None if outcome.ttft_s is None else outcome.ttft_s * speed
        tpot_s = None if outcome.tpot_s is None else outcome.tpot_s * speed
        row = ServedRow(
            order=order,
            features=decision.features,
            prefill_backlog_tokens=None if prefill_worker is None else self._backlog(prefill_worker, at_s),
            decode_requests=self._requests(decision.decode_worker, at_s),
            path=decision.path,
            reason=decision.reason,
            cell=decision.cluster,
            propensity=decision.propensity,
            ttft_s=ttft_s,
            tpot_s=tpot_s,
            ok=outcome.kind is OutcomeKind.OK,
            attained=attained(
                self._slo,
                kind=outcome.kind,
                duration_s=duration_s,
                ttft_s=ttft_s,
                tpot_s=tpot_s,
                output_tokens=outcome.output_tokens,
            ),
        )
        self._busy.append(_busy(record, decision))
        return row

    def _backlog(self, worker: WorkerId, at_s: float) -> int:
        """Prompt tokens that the worker had yet to compute."""
        return sum(
            busy.prefill_tokens for busy in self._busy if busy.prefill_worker == worker and busy.prefilled_s > at_s
        )

    def _requests(self, worker: WorkerId, at_s: float) -> int:
        """Requests in flight on the worker, a prefill leg there included."""
        return sum(
            busy.decode_worker == worker or (busy.prefill_worker == worker and busy.prefilled_s > at_s)
            for busy in self._busy
        )


def _prefill_worker(decision: Decision) -> WorkerId | None:
    """The worker that the remote path would have used; None where there was none."""
    if decision.prefill_worker is not None:
        return decision.prefill_worker
    return decision.prefill_candidates[0].worker_id if decision.prefill_candidates else None


def _busy(record: DecisionRecord, decision: Decision) -> _Busy:
    outcome, features = record.outcome, decision.features
    remote = decision.path is Path.REMOTE and decision.prefill_worker is not None
    return _Busy(
        prefill_worker=decision.prefill_worker or decision.decode_worker,
        prefill_tokens=features.prefill_isl_tokens if remote else features.decode_isl_tokens,
        prefilled_s=record.arrived_at_s + (outcome.duration_s if outcome.ttft_s is None else outcome.ttft_s),
        decode_worker=decision.decode_worker,
        ended_s=record.arrived_at_s + outcome.duration_s,
    )
