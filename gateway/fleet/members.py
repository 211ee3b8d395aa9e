"""Who is in the fleet: workers, graphs that split by themselves, and prefill workers that requests named.

The rule of this module: a member is read wholly from its settings, or the settings are refused by the field's name.
"""

from dataclasses import dataclass

from gateway.core.types import Role, WorkerId, WorkerSpec
from gateway.settings import EndpointSettings, Settings, SettingsError, WorkerSettings
from gateway.upstream.origin import Origin, parse_origin


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One worker as configured, added or named; a change makes another one."""

    worker_id: WorkerId
    url: str
    role: Role
    origin: Origin
    models: tuple[str, ...] | None = None
    """Model names as configured; None where the worker itself is asked, or the decode engine's stand for it."""
    remote_origin: Origin | None = None
    """Of a graph that splits by itself: its entry with remote prefill, the other one being `origin`."""
    kv_block_tokens: int | None = None
    kv_total_blocks: int | None = None
    max_batched_tokens: int | None = None
    caches_prefixes: bool = True
    named: bool = False
    """A request named it: it is not watched, and serves the models of the decode engine."""

    def spec(self, models: tuple[str, ...]) -> WorkerSpec:
        """The member as the core sees it."""
        return WorkerSpec(
            worker_id=self.worker_id,
            url=self.url,
            role=self.role,
            models=models,
            kv_block_tokens=self.kv_block_tokens,
            kv_total_blocks=self.kv_total_blocks,
            max_batched_tokens=self.max_batched_tokens,
            caches_prefixes=self.caches_prefixes,
            splits=self.remote_origin is not None,
        )

    def listens_where(self, other: "Member") -> bool:
        """Whether requests for both go to the same place."""
        return (self.origin, self.remote_origin) == (other.origin, other.remote_origin)


def worker_member(settings: WorkerSettings) -> Member:
    """The member that a worker's settings describe.

    Raises:
        SettingsError: its URL is none.
    """
    return Member(
        worker_id=WorkerId(settings.id),
        origin=_origin(settings.url, f"workers.{settings.id}.url"),
        **settings.model_dump(exclude={"id"}),
    )


def endpoint_member(settings: EndpointSettings) -> Member:
    """The member that an endpoint's settings describe: watched by its local path.

    Raises:
        SettingsError: one of its URLs is none.
    """
    return Member(
        worker_id=WorkerId(settings.id),
        url=settings.local_url,
        role=Role.DECODE,
        origin=_origin(settings.local_url, f"endpoints.{settings.id}.local_url"),
        remote_origin=_origin(settings.remote_url, f"endpoints.{settings.id}.remote_url"),
        models=settings.models,
    )


def members_of(settings: Settings) -> dict[WorkerId, Member]:
    """All members that the settings describe, in their order.

    Raises:
        SettingsError: a URL is none.
    """
    members = [*map(worker_member, settings.workers), *map(endpoint_member, settings.endpoints)]
    return {member.worker_id: member for member in members}


def _origin(url: str, field: str) -> Origin:
    try:
        return parse_origin(url)
    except ValueError as error:
        raise SettingsError(f"{field}: {error}") from error
