"""`tidegate explain`: how a request would be routed, and why, without sending anything.

The rule of this module: the same core decides as in the gateway, over an idle fleet; what is printed is the decision
itself.
"""

from collections.abc import Sequence
from random import Random

from rich.console import Console, Group
from rich.table import Table

from gateway.api.explanation import output_source
from gateway.core.events import WorkerUp
from gateway.core.router import Router
from gateway.core.types import (
    Candidate,
    Decision,
    Endpoint,
    Outlook,
    Path,
    Refusal,
    RequestId,
    Role,
    WorkerId,
    WorkerSpec,
)
from gateway.policies import build_policy, prompt_reader
from gateway.settings import Settings, WorkerSettings
from gateway.wire.conversation_names import ConversationReader
from gateway.wire.errors import ApiError
from gateway.wire.openai import Peeked, peek

EXAMPLE_FLEET = tuple(
    WorkerSettings(id=f"{role.value}-{index}", url="http://127.0.0.1:1", role=role)
    for role in (Role.PREFILL, Role.DECODE)
    for index in range(2)
)
"""Stands in where the settings name no worker: two prefill and two decode workers."""


def explain(
    body: bytes, endpoint: Endpoint, headers: Sequence[tuple[bytes, bytes]], settings: Settings
) -> Decision | Refusal | ApiError:
    """The decision for one request body on an idle fleet.

    Workers whose models are not configured are taken to serve the request's model.

    Raises:
        SettingsError: the policy cannot be built.
    """
    router = Router(build_policy(settings), rng=Random(settings.routing.seed), instance="explain")  # noqa: S311
    names = settings.routing.conversation.names
    peeked = peek(
        body,
        endpoint,
        request_id=RequestId("explain"),
        headers=headers,
        conversation=None if names is None else ConversationReader(names=names),
        reader=prompt_reader(router),
    )
    if isinstance(peeked, ApiError):
        return peeked
    for worker in settings.workers or EXAMPLE_FLEET:
        router.observe(WorkerUp(at_s=0.0, spec=_spec(worker, peeked)))
    return router.preview(peeked.facts, 0.0)


def _spec(worker: WorkerSettings, peeked: Peeked) -> WorkerSpec:
    return WorkerSpec(
        worker_id=WorkerId(worker.id),
        url=worker.url,
        role=worker.role,
        models=worker.models or (peeked.facts.model,),
        kv_block_tokens=worker.kv_block_tokens,
        kv_total_blocks=worker.kv_total_blocks,
        max_batched_tokens=worker.max_batched_tokens,
    )


def show(decision: Decision, console: Console) -> None:
    """Print a decision for people."""
    workers = f"decode on [bold]{decision.decode_worker}[/bold]"
    if decision.prefill_worker is not None:
        workers = f"prefill on [bold]{decision.prefill_worker}[/bold], {workers}"
    by_pin = ", where its conversation lives" if decision.pinned else ""
    console.print(f"[bold]{decision.path}[/bold] prefill: {workers}{by_pin}")
    console.print(f"because {decision.words}")
    console.print(f"policy {decision.policy} ({decision.policy_version}), reason {decision.reason}")
    console.print(Group(_features(decision), *_candidates(decision)))


def _features(decision: Decision) -> Table:
    features, slo = decision.features, decision.slo
    table = Table(title="What the policy saw", title_justify="left", show_header=False)
    rows = (
        ("prompt (ISL)", f"{features.isl_tokens} tokens"),
        ("uncached on the prefill worker", f"{features.prefill_isl_tokens} tokens"),
        ("uncached on the decode worker", f"{features.decode_isl_tokens} tokens"),
        ("predicted output (OSL)", f"{features.osl_tokens:.0f} tokens, {output_source(decision)}"),
        ("conversation", "-" if decision.turn is None else f"{decision.conversation} ({decision.turn} turn)"),
        ("cluster", "-" if decision.cluster is None else str(decision.cluster)),
        (f"SLO ({slo.name})", f"TTFT {_bound(slo.ttft_s)}, TPOT {_bound(slo.tpot_s)}"),
        ("expected", _expected(decision.outlook)),
    )
    for name, value in rows:
        table.add_row(name, value)
    return table


def _candidates(decision: Decision) -> list[Table]:
    tables = []
    if decision.path is Path.REMOTE:
        tables.append(_pool("Prefill pool", decision.prefill_candidates, decision.prefill_worker))
    tables.append(_pool("Decode pool", decision.decode_candidates, decision.decode_worker))
    return tables


def _pool(title: str, candidates: Sequence[Candidate], chosen: WorkerId | None) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("worker")
    scorers = [name for name, _ in candidates[0].scores] if candidates else []
    for name in (*scorers, "total"):
        table.add_column(name, justify="right")
    for candidate in candidates:
        style = "bold" if candidate.worker_id == chosen else None
        scores = dict(candidate.scores)
        cells = [f"{scores[name]:.3f}" if name in scores else "-" for name in scorers]
        table.add_row(candidate.worker_id, *cells, f"{candidate.total:.3f}", style=style)
    return table


def _expected(outlook: Outlook | None) -> str:
    if outlook is None:
        return "-"
    return f"TTFT {outlook.ttft_s:.3g} s, TPOT {1e3 * outlook.tpot_s:.3g} ms"


def _bound(seconds: float | None) -> str:
    return "unbounded" if seconds is None else f"{seconds:g} s"
