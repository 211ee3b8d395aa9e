"""`make bench`: what one decision costs, by fleet size and by prompt length.

The rule of this module: the real peek and the real router, on bodies and headers as clients send them; medians and
tails over many runs in one process, and each figure beside a plain JSON parse of the same body, so that machines can be
compared. Times are of the CPU, so a busy machine changes little. What was asked for is named beside what was found, and
nothing is asserted: a time is the machine's.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from time import thread_time_ns
from types import MappingProxyType
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from gateway.core.events import Dispatched, Finished, WorkerUp
from gateway.core.forecast import FleetCosts
from gateway.core.path.priced import JointPolicy
from gateway.core.path.rules import DynamoRule
from gateway.core.policy import Policy
from gateway.core.router import Router
from gateway.core.types import (
    Decision,
    Endpoint,
    Outcome,
    OutcomeKind,
    RequestId,
    Role,
    WorkerId,
    WorkerSpec,
)
from gateway.wire.conversation_names import ConversationNames, ConversationReader
from gateway.wire.openai import Peeked, peek
from gateway.wire.peeked import Headers
from loadtest.engine.presets import load_engine
from loadtest.report.plot_decisions import CostLine, plot_costs
from policy_store.costs.engine import engine_costs

MODEL = "bench"
ENGINE = "h100-llama8b"
"""Whose prices the joint policy has."""
WORKERS = (4, 16, 64, 256, 512)
PROMPT_BYTES = (1024, 4096, 32_768, 131_072)
HOME_WORKERS, HOME_BYTES = 16, 4096
"""Where the other one varies."""
RUNS = 2000
WARM_UP = 200
BODIES = 64
SESSIONS = 500
NANOS_PER_MICRO = 1e3
KIB = 1024
READER = ConversationReader(names=ConversationNames())
"""As the gateway ships."""
POLICIES: Mapping[str, Callable[[], Policy]] = MappingProxyType(
    {
        "default": Policy,
        "joint": lambda: Policy(path=JointPolicy(baseline=DynamoRule()), costs=_costs()),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """What a whole decision by the default policy may take, in microseconds."""

    workers: int
    prompt_bytes: int
    p50: float
    p99: float | None = None


BOUNDS = (
    Bound(workers=HOME_WORKERS, prompt_bytes=HOME_BYTES, p50=60.0, p99=200.0),
    Bound(workers=HOME_WORKERS, prompt_bytes=131_072, p50=350.0),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """One cell, in microseconds."""

    workers: int
    prompt_bytes: int
    peek_p50: float
    decide_p50: float
    p50: float
    """Of both together, as `p99` is."""
    p99: float
    json_p50: float


def main(
    plot: Annotated[Path | None, typer.Option(help="Draw it into this file, SVG or PNG.")] = None,
    runs: Annotated[int, typer.Option(min=10, help="Decisions per cell.")] = RUNS,
) -> None:
    """Measure and print all tables."""
    console = Console()
    console.print("One decision, microseconds of CPU: [bold]peek[/] reads and hashes the body, [bold]decide[/] is")
    console.print(
        "features, prefix look-up, path, placement and reservation. json.loads is there to compare machines.\n"
    )
    by_workers, by_prompt = {}, {}
    for name, policy in POLICIES.items():
        by_workers[name] = [cost(policy(), workers, HOME_BYTES, runs=runs) for workers in WORKERS]
        by_prompt[name] = [cost(policy(), HOME_WORKERS, size, runs=runs) for size in PROMPT_BYTES]
        title = f"{name}, {HOME_BYTES // KIB} KB prompt, by workers"
        console.print(_table(title, "workers", ((str(each.workers), each) for each in by_workers[name])))
        sizes = ((f"{each.prompt_bytes // KIB} KB", each) for each in by_prompt[name])
        console.print(_table(f"{name}, {HOME_WORKERS} workers, by prompt", "prompt", sizes))
    for line in judged(by_workers["default"] + by_prompt["default"]):
        console.print(line)
    if plot is not None:
        plot_costs(
            _lines(by_workers, lambda each: each.workers),
            _lines(by_prompt, lambda each: each.prompt_bytes // KIB),
            plot,
            bound_us=BOUNDS[0].p50,
            fixed=(f"{HOME_BYTES // KIB} KB prompt", f"{HOME_WORKERS} workers"),
        )


def cost(policy: Policy, workers: int, prompt_bytes: int, *, runs: int = RUNS) -> Cost:
    """Medians and tail over so many different prompts, half of whose text is shared."""
    router = _router(policy, workers)
    bodies = [_body(prompt_bytes, index) for index in range(BODIES)]
    peeks, decides, parses = [], [], []
    for run in range(WARM_UP + runs):
        body, headers, now_s = bodies[run % BODIES], _headers(run), float(run)
        began = thread_time_ns()
        json.loads(body)
        parsed = thread_time_ns()
        peeked = peek(body, Endpoint.CHAT, request_id=RequestId(f"r-{run}"), headers=headers, conversation=READER)
        middle = thread_time_ns()
        assert isinstance(peeked, Peeked)
        decision = router.submit(peeked.facts, now_s)
        ended = thread_time_ns()
        assert isinstance(decision, Decision)
        _finish(router, decision, now_s)
        parses.append(parsed - began)
        peeks.append(middle - parsed)
        decides.append(ended - middle)
    whole = [peek_ns + decide_ns for peek_ns, decide_ns in zip(peeks, decides, strict=True)]
    return Cost(
        workers=workers,
        prompt_bytes=prompt_bytes,
        peek_p50=_percentile(peeks, 50),
        decide_p50=_percentile(decides, 50),
        p50=_percentile(whole, 50),
        p99=_percentile(whole, 99),
        json_p50=_percentile(parses, 50),
    )


def judged(costs: Sequence[Cost]) -> list[str]:
    """A line for each bound on one of these: what was asked for and what was found."""
    found = []
    for bound in BOUNDS:
        cell = next(each for each in costs if (each.workers, each.prompt_bytes) == (bound.workers, bound.prompt_bytes))
        where = f"{bound.workers} workers, {bound.prompt_bytes // KIB} KB"
        asked = [("P50", cell.p50, bound.p50)] + ([] if bound.p99 is None else [("P99", cell.p99, bound.p99)])
        for name, value, most in asked:
            found.append(
                f"whole decision, {where}: {name} {value:,.1f} of at most {most:,.0f}"
                f" microseconds {'[green]holds[/]' if value <= most else '[red]MISS[/]'}"
            )
    return found


def _percentile(nanos: Sequence[int], percent: int) -> float:
    return float(np.percentile(nanos[WARM_UP:], percent)) / NANOS_PER_MICRO


def _costs() -> FleetCosts:
    engine = engine_costs(*load_engine(ENGINE))
    return FleetCosts(prefill=engine, decode=engine)


def _router(policy: Policy, workers: int) -> Router:
    router = Router(policy, rng=Random(0), instance="bench")  # noqa: S311 (not a secret)
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


def _finish(router: Router, decision: Decision, now_s: float) -> None:
    router.observe(Dispatched(at_s=now_s, decision_id=decision.decision_id))
    outcome = Outcome(kind=OutcomeKind.OK, status=200, duration_s=1.0)
    router.observe(Finished(at_s=now_s, decision_id=decision.decision_id, outcome=outcome))


def _headers(run: int) -> Headers:
    return (
        (b"host", b"gateway.internal:8000"),
        (b"user-agent", b"OpenAI/Python 2.8.1"),
        (b"accept", b"application/json"),
        (b"content-type", b"application/json"),
        (b"authorization", b"Bearer none"),
        (b"x-session-id", b"session-%d" % (run % SESSIONS)),
    )


def _body(prompt_bytes: int, index: int) -> bytes:
    shared = "the quick brown fox jumps over the lazy dog " * (prompt_bytes // 88)
    own = f"request {index} asks for something else now " * (prompt_bytes // 80)
    content = (shared + own)[:prompt_bytes]
    return json.dumps({"model": MODEL, "messages": [{"role": "user", "content": content}], "max_tokens": 256}).encode()


def _table(title: str, first: str, rows: Iterable[tuple[str, Cost]]) -> Table:
    table = Table(title=title, title_justify="left")
    for name in (first, "peek P50", "decide P50", "whole P50", "whole P99", "json.loads P50"):
        table.add_column(name, justify="right")
    for name, cell in rows:
        figures = (cell.peek_p50, cell.decide_p50, cell.p50, cell.p99, cell.json_p50)
        table.add_row(name, *(f"{figure:,.1f}" for figure in figures))
    return table


def _lines(costs: Mapping[str, Sequence[Cost]], at: Callable[[Cost], int]) -> dict[str, CostLine]:
    return {
        name: CostLine(
            xs=tuple(map(at, cells)),
            p50_us=tuple(each.p50 for each in cells),
            p99_us=tuple(each.p99 for each in cells),
        )
        for name, cells in costs.items()
    }


if __name__ == "__main__":
    typer.run(main)
