"""How long a worker will be busy with the prefills that were sent to it.

The rule of this module: prefills are served one after the other, in the order in which they were sent. Each is given
what it was predicted to take; whenever one ends, what is left is counted from that moment on, so that an error of the
prediction lives no longer than its own prefill.
"""

from collections import OrderedDict

from gateway.core.types import DecisionId

MEMORY_PREFILLS = 64
"""About so many of the last prefills make the correction."""
PRIOR_S = 0.5
"""Seconds of prefill that are believed to have gone as predicted before any was seen."""
CORRECTION_BOUND = 4.0
"""A correction is at most this factor, up or down: beyond it the prices are not of this engine."""


class Backlog:
    """The prefills of one worker that have not ended.

    Attributes:
        correction: what prefills took of late over what they were predicted to take.
    """

    __slots__ = ("_begun_s", "_pending", "_pending_s", "_predicted_s", "_took_s", "correction")

    def __init__(self) -> None:
        self.correction = 1.0
        self._pending: OrderedDict[DecisionId, float] = OrderedDict()
        self._pending_s = 0.0
        self._begun_s = 0.0
        self._predicted_s = self._took_s = PRIOR_S

    def __len__(self) -> int:
        return len(self._pending)

    def add(self, decision_id: DecisionId, predicted_s: float, now_s: float) -> None:
        """A prefill was sent here."""
        if not self._pending:
            self._begun_s = now_s
            self._pending_s = 0.0
        self._pending[decision_id] = predicted_s
        self._pending_s += predicted_s

    def ended(self, decision_id: DecisionId, now_s: float) -> None:
        """A prefill ended well here: it tells how good the predictions are, and the next one begins."""
        if decision_id in self._pending:
            # Prompts that share a step end together: one took all the time and the others none, and the sums are right.
            self._learn(self._pending[decision_id], now_s - self._begun_s)
            self._take_out(decision_id)
            self._begun_s = now_s

    def drop(self, decision_id: DecisionId, now_s: float) -> None:
        """A prefill is not waited for any more, for it failed or its client left."""
        if decision_id in self._pending:
            if next(iter(self._pending)) == decision_id:
                self._begun_s = now_s
            self._take_out(decision_id)

    def seconds(self, now_s: float) -> float:
        """Until all that was sent has been prefilled, as far as the corrected predictions know."""
        pending = self._pending
        if not pending:
            return 0.0
        correction = self.correction
        head_s = next(iter(pending.values())) * correction
        # The head may be late, but those behind it have not begun.
        return self._pending_s * correction - min(now_s - self._begun_s, head_s)

    def _take_out(self, decision_id: DecisionId) -> None:
        self._pending_s -= self._pending.pop(decision_id)

    def _learn(self, predicted_s: float, took_s: float) -> None:
        fade = 1.0 - 1.0 / MEMORY_PREFILLS
        self._predicted_s = self._predicted_s * fade + predicted_s
        self._took_s = self._took_s * fade + took_s
        ratio = self._took_s / self._predicted_s
        self.correction = min(CORRECTION_BOUND, max(1.0 / CORRECTION_BOUND, ratio))
