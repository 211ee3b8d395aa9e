"""What a path policy is.

The rule of this module: a policy is a total, deterministic function of its input and the generator that it is
given; it changes nothing. Every policy passes the same contract test.
"""

from random import Random
from typing import Protocol

from gateway.core.forecast import Forecast
from gateway.core.record import record
from gateway.core.types import Features, PathChoice, SloTarget, WorkerView


@record
class PathQuestion:
    """One request, and the workers that either path would use."""

    features: Features
    prefill: WorkerView
    """The prefill worker that the remote path would use."""
    decode: WorkerView
    """The decode worker of both paths."""
    now_s: float = 0.0
    slo: SloTarget | None = None
    forecast: Forecast | None = None
    """What is expected of the workers; None where their prices are not known. It is only read."""
    is_first: bool = False
    """Whether a conversation begins with it."""


class PathPolicy(Protocol):
    """Chooses between local and remote prefill where both are possible."""

    @property
    def name(self) -> str:
        """Short name, used as a metric label and a response header."""

    def choose(self, question: PathQuestion, rng: Random) -> PathChoice:
        """Answer for one request."""


class PolicyError(ValueError):
    """A policy's parameters make no sense together; raised when it is built, never when it is asked."""
