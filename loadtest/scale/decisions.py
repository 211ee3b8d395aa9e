"""What a decision costs by the size of the fleet.

The rule of this module: the router as it serves, with requests in flight and metrics that keep coming, as many per
decision whatever the size; what is timed is `submit` alone. Times are the machine's, so only their ratios tell.
"""

from dataclasses import dataclass
from random import Random
from time import perf_counter_ns

import numpy as np

from gateway.core.events import Dispatched, Finished, WorkerSampled, WorkerUp
from gateway.core.policy import Policy
from gateway.core.router import Router
from gateway.core.types import (
    Decision,
    DecisionId,
    Endpoint,
    Outcome,
    OutcomeKind,
    RequestFacts,
    RequestId,
    Role,
    WorkerId,
    WorkerSample,
    WorkerSpec,
)

MODEL = "bench"
SIZES = (16, 64, 256, 1000)
RUNS, WARM_UP = 2000, 500
IN_FLIGHT = 200
SCRAPES = 10
"""Workers scraped between two decisions: a hundred a second at ten decisions a second."""
BLOCKS, SHARED_BLOCKS, HEADS = 24, 4, 50
BLOCK_TOKENS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionCost:
    """Of one fleet."""

    workers: int
    p50_us: float
    p90_us: float


def decision_cost(workers: int, policy: Policy, *, runs: int = RUNS) -> DecisionCost:
    """Median and tail of so many decisions on a fleet of which half the workers prefill."""
    router = Router(policy, rng=Random(0), instance="bench")  # noqa: S311 (not a secret)
    for number in range(workers):
        router.observe(WorkerUp(at_s=0.0, spec=_spec(number)))
    chance = Random(1)  # noqa: S311 (not a secret)
    flying: list[DecisionId] = []
    times_ns = []
    for number in range(WARM_UP + runs):
        now_s = number / 10.0
        for _ in range(min(SCRAPES, workers)):
            _scrape(router, WorkerId(f"w{chance.randrange(workers)}"), now_s, chance)
        facts = _facts(number, chance)
        began_ns = perf_counter_ns()
        decision = router.submit(facts, now_s)
        times_ns.append(perf_counter_ns() - began_ns)
        assert isinstance(decision, Decision)
        router.observe(Dispatched(at_s=now_s, decision_id=decision.decision_id))
        flying.append(decision.decision_id)
        if len(flying) > IN_FLIGHT:
            outcome = Outcome(kind=OutcomeKind.OK, status=200, duration_s=1.0)
            router.observe(Finished(at_s=now_s, decision_id=flying.pop(0), outcome=outcome))
    p50, p90 = np.percentile(times_ns[WARM_UP:], (50, 90)) / 1e3
    return DecisionCost(workers=workers, p50_us=float(p50), p90_us=float(p90))


def _spec(number: int) -> WorkerSpec:
    return WorkerSpec(
        worker_id=WorkerId(f"w{number}"),
        url="http://127.0.0.1:1",
        role=Role.PREFILL if number % 2 else Role.DECODE,
        models=(MODEL,),
        kv_block_tokens=16,
        kv_total_blocks=50_000,
        max_batched_tokens=8192,
    )


def _scrape(router: Router, worker_id: WorkerId, now_s: float, chance: Random) -> None:
    sample = WorkerSample(at_s=now_s, running=chance.randrange(20), waiting=0, kv_used_ratio=chance.random())
    router.observe(WorkerSampled(at_s=now_s, worker_id=worker_id, sample=sample))


def _facts(number: int, chance: Random) -> RequestFacts:
    """A prompt that begins like one in `HEADS` others."""
    head = chance.randrange(HEADS) * BLOCKS
    chain = (*range(head, head + SHARED_BLOCKS), *range((number + HEADS) * BLOCKS, (number + HEADS + 1) * BLOCKS))
    return RequestFacts(
        request_id=RequestId(f"r{number}"),
        endpoint=Endpoint.CHAT,
        model=MODEL,
        prompt_token_ids=len(chain) * BLOCK_TOKENS,
        block_bytes=4 * BLOCK_TOKENS,
        block_chains=(chain,),
    )
