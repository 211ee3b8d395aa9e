"""`make bench`: what one decision costs, by fleet size and by prompt length.

The rule of this module: the real peek and the real router, on bodies as clients send them; medians and tails over many
runs in one process, and each figure beside a plain JSON parse of the same body, so that machines can be compared.
"""

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from random import Random

import numpy as np
from rich.console import Console
from rich.table import Table

from gateway.core.events import Dispatched, Finished, WorkerUp
from gateway.core.policy import Policy
from gateway.core.router import Router
from gateway.core.types import (
    Decision,
    DecisionId,
    Endpoint,
    Outcome,
    OutcomeKind,
    RequestId,
    Role,
    WorkerId,
    WorkerSpec,
)
from gateway.wire.openai import Peeked, peek

MODEL = "bench"
WORKERS = (4, 16, 64, 256)
PROMPT_BYTES = (1024, 4096, 32_768, 131_072)
RUNS = 2000
WARM_UP = 200
MICRO = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """One cell, in microseconds."""

    peek_p50: float
    decide_p50: float
    decide_p99: float
    json_p50: float


def main() -> None:
    """Measure and print both tables."""
    console = Console()
    console.print("One decision, microseconds: [bold]peek[/] reads and hashes the body, [bold]decide[/] is")
    console.print(
        "features, prefix look-up, path, placement and reservation. json.loads is there to compare machines.\n"
    )
    console.print(_table("4 KB prompt, by workers", "workers", ((str(n), cost(n, 4096)) for n in WORKERS)))
    sizes = ((f"{size // 1024} KB", cost(16, size)) for size in PROMPT_BYTES)
    console.print(_table("16 workers, by prompt", "prompt", sizes))


def cost(workers: int, prompt_bytes: int) -> Cost:
    """Median and tail over `RUNS` different prompts, half of whose text is shared."""
    router = _router(workers)
    bodies = [_body(prompt_bytes, index) for index in range(64)]
    clock = time.perf_counter
    peeks, decides, parses = [], [], []
    for run in range(WARM_UP + RUNS):
        body = bodies[run % len(bodies)]
        parses.append(_timed(clock, partial(json.loads, body)))
        began = clock()
        peeked = peek(body, Endpoint.CHAT, request_id=RequestId(f"r-{run}"))
        middle = clock()
        assert isinstance(peeked, Peeked)
        decision = router.submit(peeked.facts, float(run))
        decides.append(clock() - middle)
        peeks.append(middle - began)
        assert isinstance(decision, Decision)
        _finish(router, decision.decision_id, float(run))
    return Cost(
        peek_p50=_percentile(peeks, 50),
        decide_p50=_percentile(decides, 50),
        decide_p99=_percentile(decides, 99),
        json_p50=_percentile(parses, 50),
    )


def _timed(clock: Callable[[], float], call: Callable[[], object]) -> float:
    began = clock()
    call()
    return clock() - began


def _percentile(values: list[float], percent: int) -> float:
    return float(np.percentile(values[WARM_UP:], percent)) * MICRO


def _router(workers: int) -> Router:
    router = Router(Policy(), rng=Random(0), instance="bench")  # noqa: S311 (not a secret)
    for index in range(workers):
        role = Role.PREFILL if index % 2 else Role.DECODE
        spec = WorkerSpec(
            worker_id=WorkerId(f"{role}-{index}"),
            url="http://127.0.0.1:1",
            role=role,
            models=(MODEL,),
            kv_block_tokens=16,
            kv_total_blocks=50_000,
            max_batched_tokens=8192,
        )
        router.observe(WorkerUp(at_s=0.0, spec=spec))
    return router


def _finish(router: Router, decision_id: DecisionId, now_s: float) -> None:
    router.observe(Dispatched(at_s=now_s, decision_id=decision_id))
    outcome = Outcome(kind=OutcomeKind.OK, status=200, duration_s=1.0)
    router.observe(Finished(at_s=now_s, decision_id=decision_id, outcome=outcome))


def _body(prompt_bytes: int, index: int) -> bytes:
    shared = "the quick brown fox jumps over the lazy dog " * (prompt_bytes // 88)
    own = f"request {index} asks for something else now " * (prompt_bytes // 80)
    content = (shared + own)[:prompt_bytes]
    return json.dumps({"model": MODEL, "messages": [{"role": "user", "content": content}], "max_tokens": 256}).encode()


def _table(title: str, first: str, rows: Iterator[tuple[str, Cost]]) -> Table:
    table = Table(title=title, title_justify="left")
    for name in (first, "peek P50", "decide P50", "decide P99", "json.loads P50"):
        table.add_column(name, justify="right")
    for name, cell in rows:
        figures = (cell.peek_p50, cell.decide_p50, cell.decide_p99, cell.json_p50)
        table.add_row(name, *(f"{figure:,.1f}" for figure in figures))
    return table


if __name__ == "__main__":
    main()
