"""Prefill workers that requests name, beside one decode engine.

The rule of this module: a prefill worker is remembered from its first naming until there is no room, least recently
named first, and never forgotten while a request is in flight there.
"""

import hashlib
import re
from collections.abc import Callable
from typing import Protocol

from gateway.core.types import Role, WorkerId
from gateway.fleet.allow import AllowList, HostPort, parse_host_port
from gateway.fleet.members import Member
from gateway.upstream.origin import Origin

MAX_PLAIN_HOST_CHARS = 40
_PLAIN_HOST = re.compile(rf"[a-z0-9.-]{{1,{MAX_PLAIN_HOST_CHARS}}}")


class Members(Protocol):
    """The part of the registry that is used here."""

    def get(self, worker_id: WorkerId) -> Member | None:
        """The member of this id."""

    def add(self, member: Member) -> None:
        """Let a worker join."""

    def remove(self, worker_id: WorkerId, *, force: bool = False) -> bool:
        """Let a worker leave."""


class Prefillers:
    """The prefill workers named so far.

    Args:
        members: where they join and leave.
        allow: which may be named.
        max_prefillers: how many are remembered at once.
        in_flight: requests in flight at a worker.
    """

    def __init__(
        self, members: Members, *, allow: AllowList, max_prefillers: int, in_flight: Callable[[WorkerId], int]
    ) -> None:
        self._members = members
        self._allow = allow
        self._max_prefillers = max_prefillers
        self._in_flight = in_flight
        self._ids: dict[HostPort, WorkerId] = {}

    def offer(self, host_port: str) -> WorkerId | None:
        """The worker at `host:port`, made on first sight.

        None where it may not be named, where a worker of the settings has its name, or where there is no room.
        """
        target = parse_host_port(host_port)
        if target is None or not self._allow.permits(target):
            return None
        worker_id = self._ids.pop(target, None) or prefiller_id(target)
        if self._is_known(worker_id, target) or self._join(worker_id, target):
            self._ids[target] = worker_id
            return worker_id
        return None

    def allow(self, allow: AllowList) -> None:
        """Allow others from now on; those no longer allowed leave once nothing is in flight there."""
        self._allow = allow
        for target, worker_id in list(self._ids.items()):
            if not allow.permits(target):
                del self._ids[target]
                self._members.remove(worker_id)

    def _is_known(self, worker_id: WorkerId, target: HostPort) -> bool:
        member = self._members.get(worker_id)
        return member is not None and member.named and member.origin == _origin(target)

    def _join(self, worker_id: WorkerId, target: HostPort) -> bool:
        if self._members.get(worker_id) is not None or not self._make_room():
            return False
        origin = _origin(target)
        self._members.add(
            Member(worker_id=worker_id, url=str(origin), role=Role.PREFILL, origin=origin, named=True),
        )
        return True

    def _make_room(self) -> bool:
        if len(self._ids) < self._max_prefillers:
            return True
        for target, worker_id in self._ids.items():
            if not self._in_flight(worker_id):
                del self._ids[target]
                self._members.remove(worker_id, force=True)
                return True
        return False


def prefiller_id(target: HostPort) -> WorkerId:
    """A name for headers, metrics and logs that is the same for the same target, and another for any other."""
    if _PLAIN_HOST.fullmatch(target.host):
        return WorkerId(f"prefiller-{target.host}-{target.port}")
    digest = hashlib.sha256(str(target).encode()).hexdigest()[:8]
    host = re.sub(r"[^a-z0-9.-]", "-", target.host)[:30]
    return WorkerId(f"prefiller-{host}-{target.port}-{digest}")


def _origin(target: HostPort) -> Origin:
    return Origin(host=target.host, port=target.port)
