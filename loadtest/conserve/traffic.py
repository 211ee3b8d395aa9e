"""What conversations the fleets are given: agents at work, in closed loop.

The rule of this module: equal traffic gives equal conversations, whoever serves them; a turn comes when the answer
before it and a pause have ended. Nobody recorded when conversations begin: they begin as a Poisson process.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType

from loadtest.traces.loaders import load_workload
from loadtest.traces.retime import begun_at
from loadtest.traces.sessions import Session
from loadtest.traces.workload import Workload

HORIZON_S = 20_000
"""So long a workload is drawn from the recorded sessions: some two thousand of them."""
TURNS_AHEAD = 32
"""A first guess of how many requests a generated session has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Recorded sessions, and what stands in for them where their file is not there."""

    kind: str
    file: str
    """Below the data folder."""
    options: str
    stand_in: str
    max_turns: int | None = None
    """Longer conversations end there."""
    max_pause_s: float | None = None
    """Longer pauses are cut to it."""
    patience: float = 1.0
    """So many times as long is looked at whether a fleet keeps up: what takes longer to answer is not yet left over."""

    def is_there(self, data: Path | None) -> bool:
        """Whether the recorded sessions can be read."""
        return data is not None and (data / self.file).is_file()

    def spec(self, data: Path | None) -> str:
        """As `load_workload` takes it."""
        if data is not None and self.is_there(data):
            return f"{self.kind}:{data / self.file}?{self.options}&horizon={HORIZON_S}"
        return self.stand_in

    def read(self, data: Path | None, seed: int, sessions: int) -> tuple[Session, ...]:
        """At least so many sessions, if there are; more of them change nothing about the first."""
        if self.is_there(data):
            return tuple(map(self._cut, load_workload(self.spec(data), seed=seed).sessions))
        # A generator goes on for as long as it is asked to.
        found: tuple[Session, ...] = ()
        limit = TURNS_AHEAD * sessions
        while len(found) < sessions:
            found = load_workload(self.spec(data), seed=seed, limit=limit).sessions
            limit *= 2
        return tuple(map(self._cut, found))

    def _cut(self, session: Session) -> Session:
        if self.max_turns is None and self.max_pause_s is None:
            return session
        longest_s = float("inf") if self.max_pause_s is None else self.max_pause_s
        turns = (replace(turn, think_s=min(turn.think_s, longest_s)) for turn in session.turns[: self.max_turns])
        return replace(session, turns=tuple(turns))


SOURCES: Mapping[str, Source] = MappingProxyType(
    {
        "miniswe": Source(
            kind="lmcache",
            file="traces/lmcache_agent_miniswe.jsonl.gz",
            options="block=64",
            stand_in="synthetic:miniswe",
        ),
        # Contexts of 100,000 tokens and pauses of minutes: as they are, no KV cache of four workers holds what is
        # alive under any load worth the name.
        "claude-code": Source(
            kind="claude",
            file="traces/claude_code_sessions.jsonl.gz",
            options="agents=0&context=0.05",
            stand_in="synthetic:claude-code?context=0.05",
            max_turns=30,
            max_pause_s=10.0,
            patience=2.0,
        ),
    }
)
"""All by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Talk:
    """Some conversations at one rate."""

    workload: str
    sessions: int
    rate_rps: float
    """At which conversations begin."""
    seed: int
    """Draws the conversations and when they begin."""
    data: Path | None = None

    def load(self) -> Workload:
        """The conversations, in order of their beginning."""
        return begun_at(self._drawn(), self.rate_rps, seed=self.seed)

    def turns_mean(self) -> float:
        """Requests of a conversation."""
        sessions = self._drawn().sessions
        return sum(len(session.turns) for session in sessions) / len(sessions)

    def _drawn(self) -> Workload:
        return Workload(sessions=_read(self.workload, self.data, self.seed, _generated(self))[: self.sessions])


def missing(workload: str, data: Path | None) -> list[str]:
    """The files in whose place a generator stands."""
    source = SOURCES[workload]
    return [] if source.is_there(data) else [source.file]


def _generated(talk: Talk) -> int:
    """How many sessions to ask a generator for: a power of two, so that talks of about one size share them."""
    return 0 if SOURCES[talk.workload].is_there(talk.data) else 1 << (talk.sessions - 1).bit_length()


@lru_cache(maxsize=4)
def _read(workload: str, data: Path | None, seed: int, sessions: int) -> tuple[Session, ...]:
    return SOURCES[workload].read(data, seed, sessions)
