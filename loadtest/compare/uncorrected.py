"""A gateway that believes its cost tables whatever it sees.

The rule of this module: it exists to measure what online correction is worth; no gateway runs it.
"""

from gateway.core.forecast import Forecast
from gateway.core.router import Router
from gateway.core.types import Decision


class UncorrectedForecast(Forecast):
    """Keeps the books of what was sent, and learns nothing of how long things took."""

    def prefilled(self, decision: Decision, now_s: float) -> None:
        """It has ended, however long it took."""
        super().prefilled(decision, now_s)
        self.of(decision.prefill_worker or decision.decode_worker).backlog.correction = 1.0

    def ended(self, decision: Decision, now_s: float, tpot_s: float | None) -> None:  # noqa: ARG002
        """The request is over, however fast it was."""
        super().ended(decision, now_s, tpot_s=None)


def stop_correcting(router: Router) -> None:
    """Let a router without requests forecast by its tables alone."""
    if router.policy.costs is not None:
        router.forecast = UncorrectedForecast(router.policy.costs, router.calibration)
        router.adopt(router.policy)
