"""Whose fault a hand-over is that did not work.

The rule of this module: a decode worker that answers an error although it was told where its KV is may be broken
itself, or may find nothing there because the prefill worker died (vLLM's `kv_load_failure_policy: fail`). One such
failure proves nothing, so it counts against neither. Whoever of the two has failed more hand-overs in a row than the
other is the likelier culprit: the one that is well does well with others in between.
"""

from gateway.core.types import WorkerId

MAX_WORKERS = 1024
"""Failing workers remembered; workers come and go, and those that left have nothing to reset them."""


class HandOvers:
    """Failed hand-overs in a row, by worker."""

    def __init__(self) -> None:
        self._in_a_row: dict[WorkerId, int] = {}

    def succeeded(self, prefill: WorkerId, decode: WorkerId) -> None:
        """An answer came whole from KV that was fetched: neither has a row any more."""
        if self._in_a_row:
            self._in_a_row.pop(prefill, None)
            self._in_a_row.pop(decode, None)

    def failed(self, prefill: WorkerId, decode: WorkerId) -> WorkerId | None:
        """The decode worker answered an error; whom it counts against, or None where either may have failed."""
        by_prefill, by_decode = self._count(prefill), self._count(decode)
        if by_prefill == by_decode:
            return None
        return prefill if by_prefill > by_decode else decode

    def _count(self, worker_id: WorkerId) -> int:
        # Put last again: the one that was heard of least lately is forgotten first.
        count = self._in_a_row.pop(worker_id, 0) + 1
        self._in_a_row[worker_id] = count
        if len(self._in_a_row) > MAX_WORKERS:
            del self._in_a_row[next(iter(self._in_a_row))]
        return count
