"""Changing the settings while the gateway runs.

The rule of this module: the new tree, policy and fleet are built wholly first, beside those in force; then they take
their place between two requests. Where anything is wrong, nothing has changed. Only what the settings themselves
changed is applied: what an operator did by the admin application stays.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import structlog

from gateway.api.admin import Reloaded, RestartNeeded, require_guarded_admin
from gateway.api.live import Live
from gateway.core.policy import Policy
from gateway.core.types import WorkerId
from gateway.fleet.allow import AllowList
from gateway.fleet.members import Member, members_of
from gateway.fleet.registry import Registry
from gateway.policies import build_policy
from gateway.settings import RoutingSettings, Settings, SettingsError

RELOADABLE = (
    "routing",
    "health",
    "slo",
    "fleet.sample_max_age_s",
    "workers",
    "endpoints",
    "aliases",
    "auth",
    "sidecar.allow",
    "upstream.api_key",
)
FIXED = ("routing.seed",)
"""Within what is reloadable: the router's generator is made once."""


class Adopter(Protocol):
    """The part of the core that takes a policy."""

    def adopt(self, policy: Policy) -> None:
        """Decide by another policy from now on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prepared:
    """Everything that a reload puts in place."""

    loaded: Settings
    in_force: Settings
    changed: tuple[str, ...]
    policy: Policy
    members: Mapping[WorkerId, Member]
    allow: AllowList


class Reloader:
    """Holds the settings in force and changes them.

    Args:
        settings: those that the gateway was made with.
        policy: the one that it was made with.
        reread: reads the settings anew; raises SettingsError.
        core: takes another policy.
        registry: takes other workers.
        live: takes what requests read.
    """

    def __init__(
        self,
        settings: Settings,
        policy: Policy,
        *,
        reread: Callable[[], Settings],
        core: Adopter,
        registry: Registry,
        live: Live,
    ) -> None:
        self.settings = settings
        self.policy = policy
        self._loaded = settings
        self._members: Mapping[WorkerId, Member] = members_of(settings)
        self._reread = reread
        self._core = core
        self._registry = registry
        self._live = live
        self._one_at_a_time = asyncio.Lock()
        self._log = structlog.get_logger()

    async def reload(self) -> Reloaded:
        """Read the settings anew and put in place what changed.

        Raises:
            RestartNeeded: a change that cannot be made while running.
            SettingsError: the settings cannot be used.
        """
        async with self._one_at_a_time:
            try:
                # In a thread: a large policy bundle must not hold up the streams.
                prepared = await asyncio.to_thread(self._prepare)
            except SettingsError as error:
                self._log.error("settings.refused", error=str(error))
                raise
            reloaded = self._put(prepared)
            self._log.info("settings.reloaded", **reloaded.model_dump())
            return reloaded

    async def put_routing(self, routing: RoutingSettings) -> Policy:
        """Decide by another routing section from now on, until a reload in which that section has changed.

        Raises:
            SettingsError: its policy cannot be built.
        """
        async with self._one_at_a_time:
            kept = routing.model_copy(update={"seed": self.settings.routing.seed})
            settings = self.settings.model_copy(update={"routing": kept})
            policy = await asyncio.to_thread(build_policy, settings)
            self._adopt(policy)
            self.settings = settings
            self._live.follow(settings)
            return policy

    def _prepare(self) -> _Prepared:
        loaded = self._reread()
        changed = tuple(changed_fields(self._loaded, loaded))
        stuck = [name for name in changed if not is_reloadable(name)]
        if bool(self._loaded.sidecar.allow) != bool(loaded.sidecar.allow):
            stuck.append("sidecar.allow")  # an empty list is another mode
        if stuck:
            raise RestartNeeded(stuck)
        require_guarded_admin(loaded)
        routing = loaded.routing if _touches(changed, "routing") else self.settings.routing
        in_force = loaded.model_copy(update={"routing": routing})
        return _Prepared(
            loaded=loaded,
            in_force=in_force,
            changed=changed,
            policy=build_policy(in_force),
            members=members_of(loaded),
            allow=allow_list(loaded),
        )

    def _put(self, prepared: _Prepared) -> Reloaded:
        # A bundle may have been replaced under the same path.
        is_other = prepared.policy.version != self.policy.version
        if is_other or _touches(prepared.changed, "routing", "health", "slo", "fleet"):
            self._adopt(prepared.policy)
        before, after = self._members, prepared.members
        put = [member for worker_id, member in after.items() if before.get(worker_id) != member]
        removed = [worker_id for worker_id in before if worker_id not in after]
        for member in put:
            self._registry.put(member)
        for worker_id in removed:
            self._registry.remove(worker_id)
        if _touches(prepared.changed, "sidecar"):
            self._registry.allow(prepared.allow)
        self.settings, self._loaded, self._members = prepared.in_force, prepared.loaded, after
        self._live.follow(self.settings)
        return Reloaded(
            changed=list(prepared.changed),
            workers_put=[member.worker_id for member in put],
            workers_removed=list(removed),
            policy_version=self.policy.version,
        )

    def _adopt(self, policy: Policy) -> None:
        self._core.adopt(policy)
        self.policy = policy
        self._log.info("policy.adopted", policy=policy.path.name, version=policy.version)


def allow_list(settings: Settings) -> AllowList:
    """The prefill workers that requests may name.

    Raises:
        SettingsError: a rule is none.
    """
    try:
        return AllowList(settings.sidecar.allow)
    except ValueError as error:
        raise SettingsError(f"sidecar.allow: {error}") from error


def changed_fields(before: Settings, after: Settings) -> Iterator[str]:
    """The names, as section.field, of all fields that differ; lists count as a whole."""
    yield from _changed(before.model_dump(), after.model_dump(), "")


def is_reloadable(name: str) -> bool:
    """Whether a field may change while the gateway runs."""
    return name not in FIXED and any(name == field or name.startswith(f"{field}.") for field in RELOADABLE)


def _changed(before: Any, after: Any, name: str) -> Iterator[str]:  # noqa: ANN401 (a tree of anything)
    if isinstance(before, dict) and isinstance(after, dict):
        for key in (*before, *(key for key in after if key not in before)):
            yield from _changed(before.get(key), after.get(key), f"{name}.{key}" if name else key)
    elif before != after:
        yield name


def _touches(changed: tuple[str, ...], *sections: str) -> bool:
    return any(name.partition(".")[0] in sections for name in changed)
