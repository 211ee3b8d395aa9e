"""Who may be asked: the workers that serve a model in a role and take requests now.

The rule of this module: looked up anew only when the fleet or somebody's health has changed; whoever gets a list only
reads it.
"""

from dataclasses import dataclass

from gateway.core.fleet_state import FleetState
from gateway.core.health import HealthTable
from gateway.core.ring import Ring
from gateway.core.types import Role, WorkerId

NOBODY: frozenset[WorkerId] = frozenset()


@dataclass(slots=True)
class Members:
    """All workers of a model and role, well or not."""

    workers: list[WorkerId]
    _ring: Ring | None = None

    @property
    def ring(self) -> Ring:
        """All of them on a circle, which is drawn when it is first asked for."""
        if self._ring is None:
            self._ring = Ring(self.workers)
        return self._ring


@dataclass(slots=True)
class Routable:
    """Those of them that take requests now."""

    members: Members
    workers: list[WorkerId]
    mask: int | None = None
    """The same in the bits of the prefix index; None until somebody has worked it out."""
    _among: frozenset[WorkerId] | None = None
    _own: tuple[tuple[int, int], list[WorkerId]] | None = None

    @property
    def among(self) -> frozenset[WorkerId]:
        """The same as a set."""
        if self._among is None:
            self._among = frozenset(self.workers)
        return self._among

    def own(self, replica: int, replicas: int) -> list[WorkerId]:
        """Those that one of several replicas has for its own: its part of the circle."""
        if self._own is None or self._own[0] != (replica, replicas):
            part = self.members.ring.part(replica, replicas)
            self._own = (replica, replicas), [one for one in part if one in self.among]
        return self._own[1]


_NONE = Routable(Members([]), [])


class Pools:
    """The workers by model and role."""

    def __init__(self, fleet: FleetState, health: HealthTable) -> None:
        self._fleet = fleet
        self._health = health
        self._members: dict[tuple[str, Role], Members] = {}
        self._members_of = -1
        self._routable: dict[tuple[str, Role], Routable] = {}
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
            return self.all_routable(model, role).workers
        members = self._all(model, role).workers
        members = [one for one in members if one not in exclude and (offered is None or one in offered)]
        return self._well(members, role)

    def all_routable(self, model: str, role: Role) -> Routable:
        """Those that take requests now, with what large pools are searched by."""
        state = self._fleet.version, self._health.version
        if self._routable_of != state:
            self._routable = {}
            self._routable_of = state
        pool = self._routable.get((model, role))
        if pool is None:
            members = self._all(model, role)
            if not members.workers:
                return _NONE
            pool = self._routable[model, role] = Routable(members, self._well(members.workers, role))
        return pool

    def _well(self, members: list[WorkerId], role: Role) -> list[WorkerId]:
        # A prefill pool never panics: without a healthy prefill worker the request goes local.
        return self._health.routable(members, may_panic=role is Role.DECODE)

    def _all(self, model: str, role: Role) -> Members:
        if self._members_of != self._fleet.version:
            self._members = {}
            self._members_of = self._fleet.version
        members = self._members.get((model, role))
        if members is None:
            # A client may ask for any name; only those that exist are looked for, and remembered.
            if not self._fleet.serves(model):
                return _NONE.members
            specs = [state.spec for state in self._fleet]
            found = [spec.worker_id for spec in specs if spec.role in (role, Role.BOTH) and model in spec.models]
            members = self._members[model, role] = Members(found)
        return members
