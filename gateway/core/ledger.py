"""Reservations: what requests in flight take from each worker.

The rule of this module: every reservation is made once and ends once. Its stages only move forward, and a worker's
tallies are exactly the sums over the reservations that name it.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

from gateway.core.conversation.book import Conversation
from gateway.core.path.eligibility import without_prefill
from gateway.core.types import Decision, DecisionId, RequestFacts, WorkerId


class LedgerError(Exception):
    """A reservation was made twice, ended twice or moved backwards: a bug of the host."""


class Stage(IntEnum):
    """How far a reservation has come."""

    RESERVED = 0
    DISPATCHED = 1
    PREFILLED = 2
    """Remote path only: the prefill worker is done (or lost), the decode leg runs."""
    STREAMING = 3


@dataclass(slots=True)
class Tally:
    """One worker's sums."""

    requests: int = 0
    prefill_tokens: int = 0
    kv_tokens: int = 0
    awaited_requests: int = 0
    """Of `requests` those whose prefill another worker has yet to end: nothing of them is here."""
    awaited_kv_tokens: int = 0
    """Of `kv_tokens` theirs."""

    def copy(self) -> "Tally":
        """The sums as they are now; spelled out, for every scrape of a busy worker takes one."""
        return Tally(self.requests, self.prefill_tokens, self.kv_tokens, self.awaited_requests, self.awaited_kv_tokens)

    def plus(self, other: "Tally") -> "Tally":
        """The sums of both."""
        return Tally(
            self.requests + other.requests,
            self.prefill_tokens + other.prefill_tokens,
            self.kv_tokens + other.kv_tokens,
            self.awaited_requests + other.awaited_requests,
            self.awaited_kv_tokens + other.awaited_kv_tokens,
        )


@dataclass(slots=True)
class Reservation:
    """What one decision holds, and where. Token figures are the estimates made when it was reserved."""

    decision: Decision
    facts: RequestFacts
    at_s: float
    kv_tokens: int
    """Prompt plus predicted output, on the decode worker; a prefill worker holds the prompt while it works."""
    prefill_worker: WorkerId | None
    """Whose prefill work is reserved now: the prefill worker, later none; the decode worker on the local path."""
    prefill_tokens: int
    conversation: Conversation | None = None
    """Of which it is a turn, where that is kept book of."""
    stage: Stage = Stage.RESERVED


_IDLE = Tally()


class Ledger:
    """All reservations and the tallies per worker."""

    def __init__(self) -> None:
        self._reservations: dict[DecisionId, Reservation] = {}
        self._tallies: dict[WorkerId, Tally] = {}
        self.touched: set[WorkerId] = set()
        """Workers whose tally changed since somebody emptied this."""

    def __len__(self) -> int:
        return len(self._reservations)

    def tally(self, worker_id: WorkerId) -> Tally:
        """The worker's sums (a live object: read it, never change it)."""
        return self._tallies.get(worker_id, _IDLE)

    def tallies(self) -> Iterable[tuple[WorkerId, Tally]]:
        """Those of all workers that have anything (live objects)."""
        return self._tallies.items()

    def uses(self, worker_id: WorkerId) -> int:
        """Open reservations that may still need the worker; one pass over all.

        A prefill worker is needed until the first token: the decode worker pulls the KV from it.
        """
        return sum(
            worker_id == r.decision.decode_worker
            or (worker_id == r.decision.prefill_worker and r.stage < Stage.STREAMING)
            for r in self._reservations.values()
        )

    def get(self, decision_id: DecisionId) -> Reservation | None:
        """The reservation, while it lasts."""
        return self._reservations.get(decision_id)

    def reserve(self, reservation: Reservation) -> None:
        """Take what the decision needs from its workers.

        Raises:
            LedgerError: the decision holds a reservation already.
        """
        decision = reservation.decision
        if decision.decision_id in self._reservations:
            raise LedgerError(f"decision {decision.decision_id} is reserved already")
        self._reservations[decision.decision_id] = reservation
        decode = self._tallies.setdefault(decision.decode_worker, Tally())
        self.touched.add(decision.decode_worker)
        decode.requests += 1
        decode.kv_tokens += reservation.kv_tokens
        if reservation.prefill_worker is not None:
            self._take_prefill(reservation)

    def advance(self, decision_id: DecisionId, stage: Stage) -> Reservation:
        """Move a reservation forward.

        Raises:
            LedgerError: unknown decision, or a step backwards.
        """
        reservation = self._known(decision_id)
        if stage <= reservation.stage:
            raise LedgerError(f"decision {decision_id} cannot go from {reservation.stage} to {stage}")
        if stage >= Stage.PREFILLED:
            self._give_back_prefill(reservation)
        reservation.stage = stage
        return reservation

    def prefill_lost(self, decision_id: DecisionId) -> Reservation:
        """The decode worker takes over the prefill that was lost with the prefill worker: a local decision now."""
        reservation = self.advance(decision_id, Stage.PREFILLED)
        decision = reservation.decision = without_prefill(reservation.decision)
        reservation.prefill_worker = decision.decode_worker
        reservation.prefill_tokens = decision.features.isl_tokens - decision.decode_hit_tokens
        self._take_prefill(reservation)
        return reservation

    def release(self, decision_id: DecisionId) -> Reservation:
        """End a reservation and give back all that it held.

        Raises:
            LedgerError: the decision holds none: it was never made, or has ended already.
        """
        reservation = self._known(decision_id)
        self._give_back_prefill(reservation)
        decode_worker = reservation.decision.decode_worker
        decode = self._tallies[decode_worker]
        self.touched.add(decode_worker)
        decode.requests -= 1
        decode.kv_tokens -= reservation.kv_tokens
        self._settle(decode_worker)
        del self._reservations[decision_id]
        return reservation

    def _known(self, decision_id: DecisionId) -> Reservation:
        try:
            return self._reservations[decision_id]
        except KeyError:
            raise LedgerError(f"decision {decision_id} holds no reservation") from None

    def _take_prefill(self, reservation: Reservation) -> None:
        worker_id = reservation.prefill_worker
        assert worker_id is not None
        tally = self._tallies.setdefault(worker_id, Tally())
        self.touched.add(worker_id)
        tally.prefill_tokens += reservation.prefill_tokens
        if worker_id != reservation.decision.decode_worker:
            tally.requests += 1
            tally.kv_tokens += reservation.decision.features.isl_tokens
            self._await(reservation, 1)

    def _give_back_prefill(self, reservation: Reservation) -> None:
        worker_id = reservation.prefill_worker
        if worker_id is None:
            return
        tally = self._tallies[worker_id]
        self.touched.add(worker_id)
        tally.prefill_tokens -= reservation.prefill_tokens
        if worker_id != reservation.decision.decode_worker:
            tally.requests -= 1
            tally.kv_tokens -= reservation.decision.features.isl_tokens
            self._settle(worker_id)
            self._await(reservation, -1)
        reservation.prefill_worker = None
        reservation.prefill_tokens = 0

    def _await(self, reservation: Reservation, sign: int) -> None:
        """The decode worker awaits its KV from now on (1), or no longer (-1)."""
        worker_id = reservation.decision.decode_worker
        decode = self._tallies[worker_id]
        self.touched.add(worker_id)
        decode.awaited_requests += sign
        decode.awaited_kv_tokens += sign * reservation.kv_tokens

    def _settle(self, worker_id: WorkerId) -> None:
        # An idle worker needs no tally; workers come and go, so none is kept for those that left.
        if self._tallies[worker_id].requests == 0:
            del self._tallies[worker_id]
