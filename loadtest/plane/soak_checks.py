"""What must hold after a soak.

The rule of this module: pure; what clients were told, and what the gateway and the kernel say of it, in; checks out.
"""

from dataclasses import dataclass

from loadtest.plane.soaking import LEFT, OK, STUCK, TENTHS, Told
from loadtest.plane.state import GatewayState
from loadtest.replicas.checks import Check

MEMORY_SLACK = 0.02
STOPS_WITHIN_S = 5.0
PROBES_PER_WORKER = 1
"""A worker's probe and its scrape share a connection or have one each, as they happen to meet."""
LEAST_OK = 0.5
"""Of all requests; the rest are mistakes, departures and faults. Fewer would soak little but failures."""
SIGNS = ("Traceback", "was never retrieved", "it is pending", "was never awaited")
"""What Python says of tasks that were forgotten, and of errors that nobody expected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """What the kernel counts of the gateway's process."""

    files: int
    """Open descriptors, its sockets among them."""
    threads: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How it was with the gateway before and after, and as it stopped."""

    state: GatewayState
    before: Resources
    after: Resources
    stop_s: float
    exit_status: int | None
    log: str
    workers: int


def soak_checks(told: Told, ending: Ending, *, requests: int) -> list[Check]:
    """All that must hold."""
    return [*_answers(told, requests), _memory(told), *_left(ending)]


def _answers(told: Told, requests: int) -> list[Check]:
    ok = told.outcomes[OK]
    return [
        Check(
            what="requests, answered well, left by their clients",
            measured=f"{told.requests:,}, {ok:,}, {told.outcomes[LEFT]:,}; {told.faults} faults of workers",
            required=f"{requests:,}, at least {LEAST_OK:.0%}, some; some",
            holds=told.requests == requests and ok >= LEAST_OK * requests and told.outcomes[LEFT] > 0 < told.faults,
        ),
        Check(
            what="requests without an end",
            measured=f"{told.outcomes[STUCK]}",
            required="0",
            holds=not told.outcomes[STUCK],
        ),
        Check(
            what="clients' mistakes that were answered otherwise than by their status",
            measured=f"{told.wrong.total()} {dict(told.wrong) or ''}".strip(),
            required="0",
            holds=not told.wrong,
        ),
    ]


def _memory(told: Told) -> Check:
    sizes = told.memory_bytes
    growth = sizes[-1] / sizes[0] - 1.0 if sizes else float("inf")
    return Check(
        what="memory after each tenth, MB",
        measured=" ".join(f"{size / 2**20:.1f}" for size in sizes) + f"; last against first {growth:+.1%}",
        required=f"at most {MEMORY_SLACK:+.0%}",
        holds=len(sizes) == TENTHS and sizes[-1] <= sizes[0] * (1.0 + MEMORY_SLACK),
    )


def _left(ending: Ending) -> list[Check]:
    before, after, state = ending.before, ending.after, ending.state
    spare = PROBES_PER_WORKER * ending.workers
    signs = {sign: count for sign in SIGNS if (count := ending.log.count(sign))}
    return [
        Check(
            what="left in ledger and pool",
            measured=f"{state.words}, connections {state.connections:.0f}",
            required="0 each",
            holds=state.is_empty and not state.connections,
        ),
        Check(
            what="open files before, after; threads before, after",
            measured=f"{before.files}, {after.files}; {before.threads}, {after.threads}",
            required=f"no more, but {spare} for probes",
            holds=after.files <= before.files + spare and after.threads <= before.threads,
        ),
        Check(
            what="seconds to stop; exit status",
            measured=f"{ending.stop_s:.1f}; {ending.exit_status}",
            required=f"at most {STOPS_WITHIN_S:.0f}; 0",
            holds=ending.stop_s <= STOPS_WITHIN_S and ending.exit_status == 0,
        ),
        Check(
            what="signs of forgotten tasks in its log", measured=f"{signs or 'none'}", required="none", holds=not signs
        ),
    ]
