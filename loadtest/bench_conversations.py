"""`python -m loadtest.bench_conversations`: 200,000 random session ids through one router, and as many again.

The rule of this module: the real router and the real book, in process, in every mode that remembers; each measurement
has a process of its own, so that one does not warm the memory of another. Times are of the CPU, so a busy machine
changes little. Exit status 1 says that a request was refused or made to wait, or that memory went on growing beyond
the capacity of the book.
"""

import gc
import tracemalloc
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from random import Random
from time import thread_time_ns
from typing import TypeVar

import numpy as np
from rich.console import Console
from rich.table import Column, Table

from gateway.core.conversation.facts import ConversationFacts
from gateway.core.conversation.rules import ConversationRules, Mode, Pinning
from gateway.core.events import Dispatched, Finished, WorkerUp
from gateway.core.hashing import mix64
from gateway.core.policy import Policy
from gateway.core.router import Router
from gateway.core.types import (
    Decision,
    Endpoint,
    Outcome,
    OutcomeKind,
    RequestFacts,
    RequestId,
    Role,
    WorkerId,
    WorkerSpec,
)

_T = TypeVar("_T")

MODEL = "bench"
CAPACITY = ConversationRules().capacity
IDS = 400_000
MARKS = (50_000, 100_000, 200_000, 400_000)
"""So many ids have been seen when memory is looked at."""
SETTLED = 2 * CAPACITY
"""Ids after which the book's tables have their size: they grow once more when all that fills them is exchanged."""
LOOKUPS = 1_000_000
LATER_TURNS = 20_000
"""Turns by random ids, known and unknown, that are routed as a whole after the look-ups."""
WORKERS = 8
KV_BLOCKS = 4_000_000
"""Of each worker: room for every conversation that is remembered, so that whatever waits is a fault."""
SHARED_BLOCKS = tuple(range(1, 9))
"""The beginning of every prompt, a system prompt: what the prefix index keeps does not grow with the ids."""
SAID_OF_EACH = 3
"""Random numbers of an id: its name, and the two beginnings of its history."""
INPUT_TOKENS, OUTPUT_TOKENS = 600, 20
KV_TOKENS = INPUT_TOKENS + OUTPUT_TOKENS
SECONDS_PER_TURN = 0.0005
TURNS_PER_TICK = 2000
GROWTH_BEYOND = 0.05
"""Memory may grow by so much from a settled book on."""
NANOS_PER_MICRO = 1e3
MODES: dict[str, ConversationRules] = {
    "conserve": ConversationRules(mode=Mode.CONSERVE),
    "affinity, pinning load": ConversationRules(mode=Mode.AFFINITY, pinning=Pinning.LOAD),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Memory after so many ids."""

    ids: int
    known: int
    """Conversations in the book."""
    memory_bytes: int
    """Resident where a router was measured; allocated since the start where a book was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Routed:
    """A router that has seen all ids; latencies in microseconds."""

    marks: tuple[Mark, ...]
    lookup_us: tuple[float, float]
    """P50 and P99: which conversation a turn belongs to, and what is known of it."""
    first_us: tuple[float, float]
    """The whole submit of a first turn."""
    later_us: tuple[float, float]
    """The whole submit of a later one."""
    outcomes: Counter[str]
    """Answers of the router, by their kind."""

    @property
    def refused(self) -> int:
        """Requests that got no decision at once."""
        return self.outcomes.total() - self.outcomes[Decision.__name__]


def main() -> None:
    """Measure, print and exit."""
    console = Console()
    holds = True
    for name in MODES:
        traced, routed = _apart(traced_marks, name), _apart(routed_marks, name)
        console.print(_memory_table(name, traced, routed.marks))
        console.print(_latency_table(name, routed))
        faults = [*unbounded(traced), *unbounded(routed.marks)]
        faults += [f"{routed.refused} requests were refused or made to wait"] * bool(routed.refused)
        console.print(f"refused or made to wait: {routed.refused} of {routed.outcomes.total():,}")
        for fault in faults:
            console.print(f"[red]MISS[/] {name}: {fault}")
        holds = holds and not faults
    raise SystemExit(not holds)


def unbounded(marks: Sequence[Mark]) -> list[str]:
    """What is wrong with how memory grew: it may not, once the book is full and has settled."""
    full = [mark for mark in marks if mark.ids >= SETTLED]
    first = full[0]
    return [
        f"{mark.known:,} conversations and {mark.memory_bytes:,} bytes after {mark.ids:,} ids, "
        f"{first.known:,} and {first.memory_bytes:,} after {first.ids:,}"
        for mark in full
        if mark.known > CAPACITY or mark.memory_bytes > first.memory_bytes * (1.0 + GROWTH_BEYOND)
    ]


def traced_marks(name: str, ids: int = IDS, marks: Sequence[int] = MARKS) -> tuple[Mark, ...]:
    """What conversations alone take, as Python allocates it: one turn of each is written down, and nothing routed."""
    lab = _Lab(MODES[name])
    tracemalloc.start()
    found = []
    for number in range(ids):
        lab.write_down(number)
        if number + 1 in marks:
            gc.collect()
            found.append(lab.mark(number + 1, tracemalloc.get_traced_memory()[0]))
    tracemalloc.stop()
    return tuple(found)


def routed_marks(name: str, ids: int = IDS, marks: Sequence[int] = MARKS, lookups: int = LOOKUPS) -> Routed:
    """A turn of every id, then look-ups and turns at random among all that were seen."""
    lab = _Lab(MODES[name])
    # Made at its full size, so that what is measured is not the measurement.
    first_ns, found = array("q", [0]) * ids, []
    for number in range(ids):
        first_ns[number] = lab.turn(number)
        if number + 1 in marks:
            gc.collect()
            found.append(lab.mark(number + 1, _resident_bytes()))
    lookup_us = _percentiles(lab.lookups(lookups, ids))
    rng = Random(2)  # noqa: S311 (not a secret)
    later_ns = [lab.turn(rng.randrange(ids), is_later=True) for _ in range(min(LATER_TURNS, ids))]
    return Routed(
        marks=tuple(found),
        lookup_us=lookup_us,
        first_us=_percentiles(first_ns),
        later_us=_percentiles(later_ns),
        outcomes=lab.outcomes,
    )


class _Lab:
    """A router and the ids that come to it."""

    def __init__(self, rules: ConversationRules) -> None:
        self.outcomes: Counter[str] = Counter()
        self._router = Router(Policy(conversation=rules), rng=Random(0), instance="bench")  # noqa: S311 (not a secret)
        self._now_s = 0.0
        self._turns = 0
        workers = [_worker(index) for index in range(WORKERS)]
        self._decoders = [worker.worker_id for worker in workers if worker.role is Role.DECODE]
        for worker in workers:
            self._router.observe(WorkerUp(at_s=0.0, spec=worker))

    def mark(self, ids: int, memory_bytes: int) -> Mark:
        return Mark(ids=ids, known=len(self._router.conversations.book), memory_bytes=memory_bytes)

    def turn(self, number: int, *, is_later: bool = False) -> int:
        """One turn from its arrival to its end; what the router took to decide, in nanoseconds."""
        facts = _facts(number, is_later=is_later)
        self._now_s += SECONDS_PER_TURN
        began_ns = thread_time_ns()
        routed = self._router.submit(facts, self._now_s)
        took_ns = thread_time_ns() - began_ns
        self.outcomes[type(routed).__name__] += 1
        if isinstance(routed, Decision):
            outcome = Outcome(
                kind=OutcomeKind.OK, status=200, duration_s=1.0, input_tokens=INPUT_TOKENS, output_tokens=OUTPUT_TOKENS
            )
            self._router.observe(Dispatched(at_s=self._now_s, decision_id=routed.decision_id))
            self._router.observe(Finished(at_s=self._now_s, decision_id=routed.decision_id, outcome=outcome))
        self._turns += 1
        if self._turns % TURNS_PER_TICK == 0:
            self._router.tick(self._now_s)
        return took_ns

    def write_down(self, number: int) -> None:
        """The same turn for the book alone."""
        turn = self._router.conversations.turn_of(_facts(number, is_later=False))
        assert turn is not None
        self._now_s += SECONDS_PER_TURN
        book = self._router.conversations.book
        home = self._decoders[number % len(self._decoders)]
        conversation = book.begin(turn.identity, home, KV_TOKENS, self._now_s)
        assert conversation is not None
        book.turn_begins(conversation, KV_TOKENS, self._now_s)
        book.turn_ends(conversation, self._now_s, kv_tokens=KV_TOKENS)

    def lookups(self, count: int, ids: int) -> Iterator[int]:
        """Look up later turns of random ids; what each took, in nanoseconds."""
        rng = Random(1)  # noqa: S311 (not a secret)
        turn_of: Callable[[RequestFacts], object] = self._router.conversations.turn_of
        for _ in range(count):
            facts = _facts(rng.randrange(ids), is_later=True)
            began_ns = thread_time_ns()
            turn_of(facts)
            yield thread_time_ns() - began_ns


def _facts(number: int, *, is_later: bool) -> RequestFacts:
    label, began, went_on = (mix64(number * SAID_OF_EACH + part) for part in range(SAID_OF_EACH))
    return RequestFacts(
        request_id=RequestId(f"r-{number}"),
        endpoint=Endpoint.CHAT,
        model=MODEL,
        stream=True,
        prompt_bytes=2400,
        block_chains=(SHARED_BLOCKS,),
        max_output_tokens=OUTPUT_TOKENS,
        conversation=ConversationFacts(
            label=f"x-session-id={label:016x}", turns=(began, went_on) if is_later else (began,)
        ),
    )


def _worker(index: int) -> WorkerSpec:
    role = Role.PREFILL if index % 2 else Role.DECODE
    return WorkerSpec(
        worker_id=WorkerId(f"{role}-{index}"),
        url="http://127.0.0.1:1",
        role=role,
        models=(MODEL,),
        kv_block_tokens=16,
        kv_total_blocks=KV_BLOCKS,
        max_batched_tokens=8192,
    )


def _apart(measure: Callable[[str], _T], name: str) -> _T:
    with ProcessPoolExecutor(max_workers=1, mp_context=get_context("spawn")) as pool:
        return pool.submit(measure, name).result()


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def _percentiles(took_ns: Iterable[int]) -> tuple[float, float]:
    p50, p99 = np.percentile(np.fromiter(took_ns, dtype=np.int64), (50, 99)) / NANOS_PER_MICRO
    return float(p50), float(p99)


def _memory_table(name: str, traced: Sequence[Mark], resident: Sequence[Mark]) -> Table:
    right = ("known", "allocated", "a conversation", "resident")
    table = Table("ids seen", *(Column(each, justify="right") for each in right), title=name, title_justify="left")
    for one, whole in zip(traced, resident, strict=True):
        table.add_row(
            f"{one.ids:,}",
            f"{one.known:,}",
            f"{one.memory_bytes / 2**20:.1f} MB",
            f"{one.memory_bytes / one.known:.0f} B",
            f"{whole.memory_bytes / 2**20:.1f} MB",
        )
    return table


def _latency_table(name: str, routed: Routed) -> Table:
    table = Table("CPU microseconds", Column("P50", justify="right"), Column("P99", justify="right"))
    table.title, table.title_justify = name, "left"
    steps = (("look-up", routed.lookup_us), ("first turn", routed.first_us), ("later turn", routed.later_us))
    for step, (median, tail) in steps:
        table.add_row(step, f"{median:.1f}", f"{tail:.1f}")
    return table


if __name__ == "__main__":
    main()
