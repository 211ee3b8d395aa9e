"""Small builders for the core's types: every field has a plain default, a test names what matters to it."""

from collections.abc import Sequence
from random import Random
from typing import Any

from gateway.core.conversation.facts import ConversationFacts
from gateway.core.engine_costs import EngineCosts
from gateway.core.events import Finished, WorkerSampled, WorkerUp
from gateway.core.forecast import FleetCosts
from gateway.core.path.base import PathQuestion
from gateway.core.policy import Policy
from gateway.core.router import Router
from gateway.core.step_cost import AttentionTerms, CostTable, Curve
from gateway.core.types import (
    Decision,
    DecisionId,
    Endpoint,
    Features,
    Outcome,
    OutcomeKind,
    Path,
    Reason,
    Refusal,
    RequestFacts,
    RequestId,
    Role,
    SloTarget,
    WorkerId,
    WorkerSample,
    WorkerSpec,
    WorkerView,
)
from gateway.core.waiting import Wait

ENGINE = EngineCosts(
    table=CostTable(
        name="round",
        step_overhead_s=0.01,
        tokens=Curve((0, 1000), (0.0, 0.1)),
        sequences=Curve((0, 1000), (0.0, 0.0)),
        attention=AttentionTerms(
            launch_s=0.0,
            prefill_sequence_s=0.0,
            prefill_token_s=0.0,
            prefill_pair_s=0.0,
            decode_sequence_s=0.0,
            kv_token_s=1e-7,
        ),
    ),
    max_batched_tokens=2000,
    transfer_latency_s=0.01,
    transfer_token_s=1e-5,
)
"""A step takes 10 ms, 0.1 ms more per token and 0.1 us per token of context; a transfer 10 ms and 10 us per token."""
COSTS = FleetCosts(prefill=ENGINE, decode=ENGINE)
MODEL = "llama"
SLO = SloTarget(name="default", ttft_s=2.0, tpot_s=0.04)


def worker(name: str = "d0", role: Role = Role.DECODE, **changes: Any) -> WorkerSpec:
    fields: dict[str, Any] = {"url": f"http://{name}:8000", "models": (MODEL,), "kv_block_tokens": 16, **changes}
    return WorkerSpec(worker_id=WorkerId(name), role=role, **fields)


def sample(at_s: float = 0.0, **signals: Any) -> WorkerSample:
    return WorkerSample(at_s=at_s, **signals)


def view(name: str = "d0", **changes: Any) -> WorkerView:
    fields: dict[str, Any] = {
        "role": Role.BOTH,
        "inflight_requests": 0,
        "resident_requests": changes.get("inflight_requests", 0),
        "prefill_tokens": 0,
        "kv_tokens": 0,
        "kv_capacity_tokens": None,
        "kv_used_ratio": None,
        "kv_resident_ratio": None,
        "queue_depth": None,
        "hit_tokens": 0,
        "max_batched_tokens": None,
        "kv_block_tokens": 16,
        **changes,
    }
    return WorkerView(worker_id=WorkerId(name), **fields)


def features(isl: int = 1000, *, prefill_hit: int = 0, decode_hit: int = 0, osl: float = 256.0) -> Features:
    """Features of a prompt of `isl` tokens; hits are clamped to it, as the selector does."""
    return Features(
        isl_tokens=isl,
        prefill_isl_tokens=max(0, isl - prefill_hit),
        decode_isl_tokens=max(0, isl - decode_hit),
        osl_tokens=osl,
    )


def question(
    isl: int = 1000,
    *,
    decode_hit: int = 0,
    prefill: WorkerView | None = None,
    decode: WorkerView | None = None,
    osl: float = 256.0,
) -> PathQuestion:
    return PathQuestion(
        features=features(isl, decode_hit=decode_hit, osl=osl),
        prefill=prefill or view("p0"),
        decode=decode or view("d0", hit_tokens=min(isl, decode_hit)),
    )


def facts(
    name: str = "r0",
    *,
    tokens: int | None = None,
    chain: Sequence[int] = (),
    session: str | None = None,
    **changes: Any,
) -> RequestFacts:
    """A request; `tokens` makes its prompt that many token ids, so that no estimate is involved."""
    fields: dict[str, Any] = {"endpoint": Endpoint.CHAT, "model": MODEL, **changes}
    if session is not None:
        fields["conversation"] = ConversationFacts(label=f"x-session-id={session}")
    if tokens is not None:
        fields["prompt_token_ids"] = tokens
    if chain:
        fields["block_chains"] = (tuple(chain),)
    return RequestFacts(request_id=RequestId(name), **fields)


def decision(
    name: str = "d-1",
    *,
    decode: str = "d0",
    prefill: str | None = None,
    isl: int = 1000,
    decode_hit: int = 0,
    prefill_hit: int = 0,
) -> Decision:
    return Decision(
        decision_id=DecisionId(name),
        request_id=RequestId("r0"),
        model=MODEL,
        attempt=1,
        path=Path.LOCAL if prefill is None else Path.REMOTE,
        prefill_worker=None if prefill is None else WorkerId(prefill),
        decode_worker=WorkerId(decode),
        policy="local",
        policy_version="built-in",
        reason=Reason.ALWAYS_LOCAL,
        words="",
        propensity=1.0,
        cluster=None,
        pinned=False,
        features=features(isl, prefill_hit=prefill_hit, decode_hit=decode_hit),
        prefill_hit_tokens=prefill_hit,
        decode_hit_tokens=decode_hit,
        slo=SLO,
    )


def outcome(kind: OutcomeKind = OutcomeKind.OK, **changes: Any) -> Outcome:
    fields: dict[str, Any] = {"status": 200 if kind is OutcomeKind.OK else 500, "duration_s": 1.0, **changes}
    return Outcome(kind=kind, **fields)


def finished(of: Decision, *, at_s: float = 0.0, blame: WorkerId | None = None, **changes: Any) -> Finished:
    """The end of a decision; `changes` go to the outcome."""
    return Finished(at_s=at_s, decision_id=of.decision_id, outcome=outcome(**changes), blame=blame)


def router(*specs: WorkerSpec, policy: Policy | None = None, instance: str = "gw") -> Router:
    """A router whose workers are up at 0 s."""
    made = Router(policy or Policy(), rng=Random(7), instance=instance)
    for spec in specs:
        made.observe(WorkerUp(at_s=0.0, spec=spec))
    return made


def scrape(to: Router, name: str, at_s: float = 0.0, **signals: Any) -> None:
    to.observe(WorkerSampled(at_s=at_s, worker_id=WorkerId(name), sample=sample(at_s, **signals)))


def routed(answer: Decision | Refusal | Wait) -> Decision:
    """The decision, where anything else would be a surprise."""
    assert isinstance(answer, Decision), answer
    return answer
