"""Who may be asked: the workers that serve a model in a role and take requests now.

The rule of this module: looked up anew only when the fleet or somebody's health has changed; whoever gets a list only
reads it.
"""

from gateway.core.fleet_state import FleetState
from gateway.core.health import HealthTable
from gateway.core.types import Role, WorkerId

NOBODY: frozenset[WorkerId] = frozenset()


class Pools:
    """The workers by model and role."""

    def __init__(self, fleet: FleetState, health: HealthTable) -> None:
        self._fleet = fleet
        self._health = health
        self._members: dict[tuple[str, Role], list[WorkerId]] = {}
        self._members_of = -1
        self._routable: dict[tuple[str, Role], list[WorkerId]] = {}
        self._routable_of = (-1, -1)

    def routable(
        self,
        model: str,
        role: Role,
        *,
        exclude: frozenset[WorkerId] = NOBODY,
        offered: tuple[WorkerId, ...] | None = None,
    ) -> list[WorkerId]:
        """Those that take requests now; where some are `offered`, only among these."""
        if not exclude and offered is None:
            return self._all_routable(model, role)
        members = self._all(model, role)
        members = [one for one in members if one not in exclude and (offered is None or one in offered)]
        return self._well(members, role)

    def _all_routable(self, model: str, role: Role) -> list[WorkerId]:
        state = self._fleet.version, self._health.version
        if self._routable_of != state:
            self._routable = {}
            self._routable_of = state
        pool = self._routable.get((model, role))
        if pool is None:
            pool = self._well(self._all(model, role), role)
            if pool:
                self._routable[model, role] = pool
        return pool

    def _well(self, members: list[WorkerId], role: Role) -> list[WorkerId]:
        # A prefill pool never panics: without a healthy prefill worker the request goes local.
        return self._health.routable(members, may_panic=role is Role.DECODE)

    def _all(self, model: str, role: Role) -> list[WorkerId]:
        if self._members_of != self._fleet.version:
            self._members = {}
            self._members_of = self._fleet.version
        members = self._members.get((model, role))
        if members is None:
            specs = [state.spec for state in self._fleet]
            members = [spec.worker_id for spec in specs if spec.role in (role, Role.BOTH) and model in spec.models]
            # A client may ask for any name; only those that exist are remembered.
            if members:
                self._members[model, role] = members
        return members
