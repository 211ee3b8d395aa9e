"""What a scrape sees of the connection pool.

The rule of this module: read-only. Workers behind one authority share its connections, and each shows them all.
"""

from collections.abc import Mapping

from gateway.core.types import WorkerId
from gateway.upstream.origin import Origin
from gateway.upstream.pool import UpstreamPool


class PoolState:
    """Reads a pool for `gateway.telemetry.state.PoolReader`."""

    def __init__(self, pool: UpstreamPool, origins: Mapping[WorkerId, Origin]) -> None:
        self._pool = pool
        self._origins = origins

    def connections(self) -> Mapping[tuple[str, str], int]:
        """Open connections by (worker, state), the state being `busy` or `idle`."""
        counts: dict[tuple[str, str], int] = {}
        for worker_id, origin in self._origins.items():
            counts[worker_id, "busy"], counts[worker_id, "idle"] = self._pool.connections(origin)
        return counts
