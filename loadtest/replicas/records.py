"""What a run leaves behind: one record per try of a turn, one per session, and when what was done to the fleet.

The rule of this module: data only; all times are seconds of one clock.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """One try of a turn, as its client saw it."""

    session: str
    turn: int
    """From 1."""
    replica: str
    """The gateway that it was sent to."""
    sent_s: float
    ended_s: float
    worker: str | None
    """The decode worker that the gateway named; None where it named none."""
    pinned_to: str | None
    """The worker of the session's last turn that ended well."""
    error: str | None
    """None where the answer came to its end."""

    @property
    def is_later(self) -> bool:
        """Whether it had somewhere to go on."""
        return self.pinned_to is not None

    @property
    def is_at_home(self) -> bool:
        """Whether it went on there."""
        return self.worker == self.pinned_to


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """A session that has ended."""

    session: str
    ended_s: float
    turns: int
    """That ended well."""
    is_whole: bool
    """All that it had to have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What was done to a part of the fleet, and what was done about it."""

    name: str
    """Of the part."""
    began_s: float
    """Just before it was stopped or killed."""
    gone_s: float
    """Just after: it takes nothing any more."""
    back_s: float
    """It serves again, or something in its place; for ever, where it stays away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """When what was done."""

    steady_from_s: float
    replica: Fault
    redis: Fault
    decoder: Fault


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """All of it."""

    course: Course
    tried: tuple[Tried, ...]
    played: tuple[Played, ...]
    peak_sessions: int
    """Sessions that were under way at once."""
