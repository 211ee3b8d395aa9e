"""Changes when a workload's requests and sessions begin.

The rule of this module: only beginnings move, and they keep their order; what a session's tools and users take stays
as it is. Time runs faster or slower, so that gaps keep their coefficient of variation, but where sessions are begun
anew.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from loadtest.traces.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """A stretch of the run in which arrivals come `scale` times as fast as they are written, or ramp to `end_scale`."""

    duration_s: float
    scale: float
    end_scale: float | None = None
    """None: as `scale`."""

    def __post_init__(self) -> None:
        if self.duration_s <= 0 or self.scale < 0 or self.last_scale < 0:
            raise ValueError("a phase lasts longer than 0 s, and its scales are not negative")

    @property
    def last_scale(self) -> float:
        """The scale at the phase's end."""
        return self.scale if self.end_scale is None else self.end_scale

    @property
    def written_s(self) -> float:
        """How much of the written trace the phase takes."""
        return self.duration_s * (self.scale + self.last_scale) / 2.0

    def at(self, written_s: float) -> float:
        """Seconds into the phase at which so much of the trace has passed."""
        slope = (self.last_scale - self.scale) / self.duration_s
        # The root of scale * x + slope / 2 * x^2 = written_s, in the form that does not cancel where slope is near 0.
        root = math.sqrt(max(0.0, self.scale**2 + 2.0 * slope * written_s))
        return 2.0 * written_s / (self.scale + root) if self.scale + root else 0.0


def retimed(workload: Workload, moved: Callable[[float], float]) -> Workload:
    """The workload with every beginning at `moved` of its time; `moved` must not fall."""
    return Workload(
        requests=tuple(replace(request, arrival_s=moved(request.arrival_s)) for request in workload.requests),
        sessions=tuple(replace(session, start_s=moved(session.start_s)) for session in workload.sessions),
    )


def sped_up(workload: Workload, factor: float) -> Workload:
    """Arrivals `factor` times as fast."""
    return workload if factor == 1.0 else retimed(workload, lambda at_s: at_s / factor)


def start_rate_rps(workload: Workload) -> float:
    """Mean first arrivals per second, from time 0 to the last: requests and sessions, not a session's later turns.

    Raises:
        ValueError: they all arrive at once.
    """
    starts = len(workload.requests) + len(workload.sessions)
    last_s = max([one.arrival_s for one in workload.requests[-1:]] + [one.start_s for one in workload.sessions[-1:]])
    if last_s <= 0:
        raise ValueError("the trace has no rate: all of it arrives at 0 s")
    return starts / last_s


def at_rate(workload: Workload, rate_rps: float) -> Workload:
    """The workload with a mean rate of first arrivals of exactly `rate_rps`."""
    return sped_up(workload, rate_rps / start_rate_rps(workload))


def begun_at(workload: Workload, rate_rps: float, *, seed: int = 0, is_even: bool = False) -> Workload:
    """The workload with its sessions begun anew, in their order, at so many per second; requests stay where they are.

    They begin as a Poisson process, drawn by the seed, with a first gap before the first of them; or, where it is to be
    even, one after every `1 / rate_rps` seconds. Twice the rate is the same draw at half the times.

    Raises:
        ValueError: the rate is not above 0.
    """
    if rate_rps <= 0:
        raise ValueError(f"the rate of sessions must be above 0, got {rate_rps:g}")
    sessions = len(workload.sessions)
    gaps = np.ones(sessions) if is_even else np.random.default_rng((seed, 0)).exponential(1.0, sessions)
    starts_s = (np.cumsum(gaps) / rate_rps).tolist()
    begun = (replace(one, start_s=at_s) for one, at_s in zip(workload.sessions, starts_s, strict=True))
    return Workload(requests=workload.requests, sessions=tuple(begun))


def phased(workload: Workload, phases: Sequence[Phase]) -> Workload:
    """The workload run through phases one after another; the last one's end scale holds from there on.

    A phase of scale 0 is a pause. Raises `ValueError` where there is no phase, or the last ends at scale 0.
    """
    if not phases or phases[-1].last_scale == 0:
        raise ValueError("the last phase must end at a scale above 0")
    edges: list[tuple[float, float, Phase]] = []
    written_s = began_s = 0.0
    for phase in phases:
        edges.append((written_s, began_s, phase))
        written_s, began_s = written_s + phase.written_s, began_s + phase.duration_s

    def moved(at_s: float) -> float:
        if at_s >= written_s:
            return began_s + (at_s - written_s) / phases[-1].last_scale
        before_s, phase_began_s, phase = next(edge for edge in reversed(edges) if edge[0] <= at_s)
        return phase_began_s + phase.at(at_s - before_s)

    return retimed(workload, moved)


def parse_phases(text: str) -> list[Phase]:
    """Phases written as `DURATION:SCALE` or `DURATION:SCALE-END`, with commas between them.

    Raises:
        ValueError: the text is not that.
    """
    try:
        return [_parse_phase(part) for part in text.split(",")]
    except ValueError as error:
        raise ValueError(f"phases must be DURATION:SCALE[-END],..., got {text!r}: {error}") from error


def _parse_phase(text: str) -> Phase:
    duration, _, scales = text.partition(":")
    scale, _, end = scales.partition("-")
    return Phase(duration_s=float(duration), scale=float(scale), end_scale=float(end) if end else None)
