"""How long a run lasts, how many sessions it plays, and what must hold of it.

The rule of this module: data only. Times are seconds of the run; sizes are bytes of text and output tokens.
"""

from dataclasses import dataclass

LEAST_PINNED_RATIO = 0.995
"""Of the later turns, those that go where the turn before them went."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A run. The defaults are the acceptance."""

    sessions: int = 2000
    """Played side by side; as one ends another begins, until the decode worker is killed."""
    turns: tuple[int, int] = (4, 6)
    """Fewest and most of a session."""
    think_s: tuple[float, float] = (20.0, 30.0)
    """Shortest and longest pause between an answer and the next turn."""
    first_bytes: tuple[int, int] = (900, 2000)
    """Of a session's first message."""
    next_bytes: tuple[int, int] = (150, 350)
    """Of each later one."""
    output_tokens: tuple[int, int] = (8, 16)
    ramp_s: float = 20.0
    """All sessions begin within this."""
    settle_s: float = 5.0
    """From the last beginning to the first turn that is judged."""
    steady_s: float = 45.0
    replica_gone_s: float = 15.0
    """From the kill of a replica to the start of a fresh one in its place."""
    replica_back_s: float = 15.0
    """From there to the next fault."""
    redis_gone_s: float = 20.0
    redis_back_s: float = 20.0
    agree_s: float = 3.0
    """So long after Redis is back the replicas may take to tell each other what they know."""
    decoder_gone_s: float = 15.0
    """From the kill of a decode worker until no session begins any more; those under way are seen to their end."""
    seed: int = 0


def quick(sessions: int) -> Plan:
    """The same in about a minute, with a tenth of the sessions or so."""
    return Plan(
        sessions=sessions,
        think_s=(1.5, 3.5),
        ramp_s=2.5,
        settle_s=1.0,
        steady_s=8.0,
        replica_gone_s=4.0,
        replica_back_s=6.0,
        redis_gone_s=8.0,
        redis_back_s=8.0,
        decoder_gone_s=3.0,
    )
