"""Whether traffic still is what the clusters were fitted on.

The rule of this module: it compares a window of requests with the fit window, and says by which measure they differ
[D] (methods.md 1.3: population stability index of the shares, or a fit that is a quarter worse).
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from gateway.core.types import Features
from policy_store.learn.clusters import Clustering

SHARE_FLOOR = 1e-4
"""An empty cluster counts as so much, or its term would be infinite."""
MIN_FIT = 1e-3
"""Standardised units squared, or nats: a fit window that is tighter counts as so loose."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftPlan:
    """When a window counts as drifted."""

    window: int = 1000
    """Requests; fewer say too little: with K clusters the index is about (K - 1) / window without any drift."""
    max_psi: float = 0.2
    max_fit_loss: float = 0.25
    """How much worse the window may fit, as a share of the fit window's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """How far a window is from the fit window."""

    psi: float
    fit_loss: float
    """0 where it fits as well; 0.25 where inertia or the log-likelihood is a quarter worse."""

    def exceeds(self, plan: DriftPlan) -> bool:
        """True where the clusters should be fitted again."""
        return self.psi > plan.max_psi or self.fit_loss > plan.max_fit_loss


def psi(expected: Sequence[float], observed: Sequence[float]) -> float:
    """The population stability index of two distributions: sum of (o - e) ln(o / e), at least 0."""
    pairs = [(max(e, SHARE_FLOOR), max(o, SHARE_FLOOR)) for e, o in zip(expected, observed, strict=True)]
    return sum((o - e) * math.log(o / e) for e, o in pairs)


def drift(clustering: Clustering, window: Sequence[Features]) -> Drift:
    """How far a window of requests with finite features is from the fit window; none where it is empty."""
    if not window:
        return Drift(psi=0.0, fit_loss=0.0)
    counts = Counter(map(clustering.assign, window))
    observed = [counts[cluster] / len(window) for cluster in range(len(clustering.model))]
    lost = clustering.fit - clustering.fit_of(window)
    # Equal requests fit perfectly: any other is then infinitely worse, whatever the scale.
    fit_loss = lost / max(abs(clustering.fit), MIN_FIT)
    return Drift(psi=psi(clustering.shares, observed), fit_loss=fit_loss)
