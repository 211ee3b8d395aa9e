"""The gateway's side of a simulated fleet: its workers as the core knows them, and the core that routes to them.

The rule of this module: an engine's limits are told to the core as a worker's own metrics would tell them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gateway.core.policy import Policy
from gateway.core.types import Role, SloDefaults, SloTarget, WorkerId, WorkerSpec
from loadtest.engine.types import EngineSpec
from loadtest.simulator.dispatch import CoreDispatcher
from loadtest.simulator.lengths import Lengths, foretold
from loadtest.traces.types import MOONCAKE_BLOCK_TOKENS
from loadtest.traces.workload import Workload

MODEL = "simulated-llm"


@dataclass(frozen=True, slots=True)
class Member:
    """One worker."""

    name: str
    role: Role
    limits: EngineSpec

    def spec(self) -> WorkerSpec:
        """As the gateway knows it."""
        return WorkerSpec(
            worker_id=WorkerId(self.name),
            url=f"http://{self.name}",
            role=self.role,
            models=(MODEL,),
            kv_block_tokens=self.limits.block_tokens,
            kv_total_blocks=self.limits.total_blocks,
            max_batched_tokens=self.limits.max_batched_tokens,
            caches_prefixes=self.limits.caches_prefixes,
        )


def core_dispatcher(
    policy: Policy,
    members: Sequence[Member],
    workload: Workload,
    slo: SloTarget,
    *,
    seed: int,
    run_id: str | None = None,
    lengths: Lengths = Lengths.LIMIT,
) -> CoreDispatcher:
    """The core with a policy that knows the SLO, and a prefix index bounded by what the fleet's caches can hold."""
    block_tokens = _block_tokens(workload)
    # The core counts its index in blocks of a prompt's chain, which here are the trace's.
    bound = max(max(1, each.limits.total_blocks * each.limits.block_tokens // block_tokens) for each in members)
    bounded = replace(
        policy,
        slo=SloDefaults(default=replace(slo, name="default")),
        index_blocks_per_worker=min(policy.index_blocks_per_worker, bound),
    )
    predicts = lengths not in (Lengths.LIMIT, Lengths.ROLLING)
    return CoreDispatcher(
        bounded,
        [member.spec() for member in members],
        model=MODEL,
        seed=seed,
        run_id=run_id,
        lengths=lengths,
        foretold=foretold(lengths, workload.driver().requests, seed=seed) if predicts else None,
    )


def _block_tokens(workload: Workload) -> int:
    """The longest block in use."""
    sizes = {request.block_tokens for request in workload.requests}
    sizes |= {session.block_tokens for session in workload.sessions}
    return max(sizes, default=MOONCAKE_BLOCK_TOKENS)
