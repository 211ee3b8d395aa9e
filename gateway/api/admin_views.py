"""What the admin application shows, as it shows it.

The rule of this module: answers are made from what is in memory; what is not known is null.
"""

from collections.abc import Mapping
from typing import Any

import msgspec
from pydantic import BaseModel, Field

from gateway.core.health import HealthState
from gateway.core.policy import Policy
from gateway.core.types import Role, WorkerId
from gateway.fleet.members import Member
from gateway.fleet.registry import Registry
from gateway.settings import Settings
from gateway.telemetry.state import DRAINING, StateReader, WorkerState

UNKNOWN = "unknown"
SHOWN_HASH_CHARS = 8


class WorkerView(BaseModel):
    """One worker."""

    id: str
    url: str
    remote_url: str | None = Field(description="The entry with remote prefill, of a graph that splits by itself.")
    role: Role
    models: list[str] | None = Field(description="Null until they are known.")
    named_by_requests: bool = Field(description="A prefill worker from the sidecar's header.")
    kv_block_tokens: int | None
    kv_total_blocks: int | None
    max_batched_tokens: int | None
    caches_prefixes: bool
    state: str = Field(description="draining, else the breaker's state, or unknown.")
    breaker: HealthState | None = Field(description="Null until the models are known.")
    draining: bool
    inflight_requests: int
    inflight_tokens: int
    queue_depth: int | None
    kv_used_ratio: float | None
    sample_age_s: float | None


class PolicyView(BaseModel):
    """The policy in force."""

    name: str
    version: str
    description: dict[str, Any] | None = Field(description="The settings that it was made from.")
    refused: str | None = Field(description="Why the policy store's active bundle is not in force.")


def worker_views(registry: Registry, state: StateReader) -> list[WorkerView]:
    """Every member of the fleet, whether or not the core knows it yet."""
    states = {worker.worker_id: worker for worker in state.workers()}
    return [_worker_view(registry, member, states) for member in registry.members.values()]


def _worker_view(registry: Registry, member: Member, states: Mapping[WorkerId, WorkerState]) -> WorkerView:
    worker_id, models = member.worker_id, registry.models(member.worker_id)
    state = states.get(worker_id)
    draining = registry.is_draining(worker_id)
    breaker = state.state if state else None
    return WorkerView(
        id=worker_id,
        url=member.url,
        remote_url=None if member.remote_origin is None else str(member.remote_origin),
        role=member.role,
        models=None if models is None else list(models),
        named_by_requests=member.named,
        kv_block_tokens=member.kv_block_tokens,
        kv_total_blocks=member.kv_total_blocks,
        max_batched_tokens=member.max_batched_tokens,
        caches_prefixes=member.caches_prefixes,
        state=DRAINING if draining else (breaker or UNKNOWN),
        breaker=breaker,
        draining=draining,
        inflight_requests=state.inflight_requests if state else 0,
        inflight_tokens=state.inflight_tokens if state else 0,
        queue_depth=state.queue_depth if state else None,
        kv_used_ratio=state.kv_used_ratio if state else None,
        sample_age_s=state.sample_age_s if state else None,
    )


def policy_view(policy: Policy, refused: str | None) -> PolicyView:
    """A policy; one that was not made from settings has no description."""
    description = msgspec.json.decode(policy.description) if policy.description else None
    return PolicyView(name=policy.path.name, version=policy.version, description=description, refused=refused)


def masked_settings(settings: Settings) -> dict[str, Any]:
    """The tree as JSON: secrets are stars already, and of a key's hash enough is left to tell it from others."""
    tree = settings.model_dump(mode="json")
    for key in tree["auth"]["keys"]:
        key["sha256"] = f"{key['sha256'][:SHOWN_HASH_CHARS]}..."
    return tree
