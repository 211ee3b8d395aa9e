"""Changing the settings while the gateway runs.

The rule of this module: the new tree, policy and fleet are built wholly first, beside those in force; then they take
their place between two requests. Where anything is wrong, nothing has changed. Only what the settings themselves
changed is applied: what an operator did by the admin application stays. A policy store that goes wrong by itself is not
a mistake of the settings: what was in force decides on.
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
from gateway.selection import Selected, select, select_anew
from gateway.settings import Settings, SettingsError
from gateway.settings_routing import RoutingSettings
from policy_store.faults import BundleFault, StoreError
from policy_store.store import FileStore

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
    selected: Selected
    policy: Policy
    members: Mapping[WorkerId, Member]
    allow: AllowList


class Reloader:
    """Holds the settings in force and changes them.

    Args:
        settings: those that the gateway was made with.
        policy: the one that it was made with.
        selected: what the policy was built from.
        refused: is told whenever the policy store's active bundle is not put in force.
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
        selected: Selected,
        refused: Callable[[BundleFault], None],
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
        self._refused = refused
        self._log = structlog.get_logger()
        self._hold(selected)

    @property
    def refusal(self) -> str | None:
        """Why the policy store's active bundle is not in force; None where it is."""
        return None if self._selected.refusal is None else str(self._selected.refusal)

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
            selected = await asyncio.to_thread(_select_strictly, kept)
            policy = build_policy(settings, selected.chosen)
            self._adopt(policy)
            self._hold(selected)
            self.settings = settings
            self._live.follow(settings)
            return policy

    async def follow_store(self) -> None:
        """Decide by the active bundle of the policy store, if one is followed and its pointer has moved."""
        while True:
            routing, held = self.settings.routing, self._selected
            # Not under the lock: a store that hangs must not keep an operator from switching it off.
            selected = await asyncio.to_thread(select_anew, routing, held)
            if selected is None:
                return
            async with self._one_at_a_time:
                if self.settings.routing is routing and self._selected is held:
                    if selected.chosen is not held.chosen:
                        self._adopt(build_policy(self.settings, selected.chosen))
                    self._hold(selected)
                    return

    async def move_store(self, move: Callable[[FileStore], object]) -> Policy:
        """Move the pointer of the policy store, follow it at once, and return the policy then in force.

        Raises:
            StoreError: there is no store, or it cannot do that.
            BundleError: the bundle is refused; the pointer stays.
        """
        root = self.settings.routing.store
        if root is None:
            raise StoreError("there is no policy store: routing.store is not set")
        try:
            await asyncio.to_thread(move, FileStore(root))
        except OSError as error:
            raise StoreError(f"policy store {root} cannot be written: {error}") from error
        await self.follow_store()
        return self.policy

    def _prepare(self) -> _Prepared:
        loaded = self._reread()
        changed = tuple(changed_fields(self._loaded, loaded))
        stuck = [name for name in changed if not is_reloadable(name)]
        if bool(self._loaded.sidecar.allow) != bool(loaded.sidecar.allow):
            stuck.append("sidecar.allow")  # an empty list is another mode
        if stuck:
            raise RestartNeeded(stuck)
        require_guarded_admin(loaded)
        if _touches(changed, "routing"):
            routing, selected = loaded.routing, _select_strictly(loaded.routing)
        else:
            routing, selected = self.settings.routing, select(self.settings.routing, self._selected)
        in_force = loaded.model_copy(update={"routing": routing})
        return _Prepared(
            loaded=loaded,
            in_force=in_force,
            changed=changed,
            selected=selected,
            policy=build_policy(in_force, selected.chosen),
            members=members_of(loaded),
            allow=allow_list(loaded),
        )

    def _put(self, prepared: _Prepared) -> Reloaded:
        # A bundle may have been replaced under the same path.
        is_other = prepared.policy.version != self.policy.version
        if is_other or _touches(prepared.changed, "routing", "health", "slo", "fleet"):
            self._adopt(prepared.policy)
        self._hold(prepared.selected)
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

    def _hold(self, selected: Selected) -> None:
        self._selected = selected
        if selected.refusal is not None:
            fault, words = selected.refusal.fault, str(selected.refusal)
            self._refused(fault)
            self._log.error("policy.refused", reason=fault, error=words, serving=selected.chosen.version)


async def keep_following(reloader: Reloader) -> None:
    """Look at the policy store again and again."""
    while True:
        await asyncio.sleep(reloader.settings.routing.store_poll_s)
        try:
            await reloader.follow_store()
        except Exception:  # noqa: BLE001 (the gateway serves on, and the next look may succeed)
            structlog.get_logger().exception("policy.look_failed")


def _select_strictly(routing: RoutingSettings) -> Selected:
    """Settings that begin to follow a store must find a bundle there that can be used, or none."""
    selected = select(routing)
    if selected.refusal is not None:
        raise SettingsError(str(selected.refusal))
    return selected


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
