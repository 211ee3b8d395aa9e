"""The log by which replicas tell each other their loads, as it is written and read.

The rule of this module: what is told is a load as it is now, never a difference, so a text that is read twice changes
nothing, and of one replica's texts the last word counts. Each reader adds up for itself.
"""

from collections.abc import Iterable
from typing import Final

from gateway.core.events import WorkerLoad
from gateway.core.types import WorkerId

CHANGES: Final = "+"
WHOLE: Final = "="
"""What was told of this replica before counts no longer."""
_NUMBERS: Final = len(WorkerLoad._fields) - 1
_NONE: Final = (0,) * _NUMBERS


def written(kind: str, replica: str, loads: Iterable[WorkerLoad]) -> str:
    """A replica's text; the loads follow its name, a line each: five numbers and the worker."""
    lines = [f"{kind}{replica}\n"]
    lines += [f"{' '.join(map(str, load[1:]))} {load[0]}\n" for load in loads]
    return "".join(lines)


class HeardLoads:
    """What all other replicas have in flight, as far as was read.

    Args:
        own: the name of the replica that reads; its own texts are passed over.
    """

    def __init__(self, own: str) -> None:
        self._own = own
        self._loads: dict[str, dict[str, tuple[int, ...]]] = {}
        """By replica and worker."""
        self._sums: dict[str, list[int]] = {}
        self._touched: set[str] = set()

    def begin(self) -> None:
        """Forget all that was read."""
        self._loads, self._sums, self._touched = {}, {}, set()

    def read(self, text: str) -> None:
        """Take note of texts that follow each other; raises ValueError for what is none."""
        loads: dict[str, tuple[int, ...]] | None = None
        for line in text.split("\n"):
            if line[:1] in (CHANGES, WHOLE):
                loads = self._loads_of(line[1:], is_whole=line[0] == WHOLE)
            elif line and loads is not None:
                *numbers, worker = line.split(" ", _NUMBERS)
                self._set(loads, worker, tuple(map(int, numbers)))

    def changed(self) -> list[WorkerLoad]:
        """The sums at workers where anything was read of since this was asked last; zeros where nothing is left."""
        found = []
        for worker in self._touched:
            total = self._sums[worker]
            found.append(WorkerLoad(WorkerId(worker), *total))
            if not any(total):
                del self._sums[worker]
        self._touched = set()
        return found

    def _loads_of(self, replica: str, *, is_whole: bool) -> dict[str, tuple[int, ...]] | None:
        if replica == self._own:
            return None
        if is_whole:
            gone = self._loads.pop(replica, {})
            for worker in list(gone):
                self._set(gone, worker, _NONE)
        return self._loads.setdefault(replica, {})

    def _set(self, loads: dict[str, tuple[int, ...]], worker: str, load: tuple[int, ...]) -> None:
        before = loads.get(worker, _NONE)
        if any(load):
            loads[worker] = load
        else:
            loads.pop(worker, None)
        total = self._sums.get(worker)
        if total is None:
            total = self._sums[worker] = [0] * _NUMBERS
        # Spelled out: among a hundred replicas there are thousands of these a second.
        requests, prefill, kv, awaited, awaited_kv = load
        total[0] += requests - before[0]
        total[1] += prefill - before[1]
        total[2] += kv - before[2]
        total[3] += awaited - before[3]
        total[4] += awaited_kv - before[4]
        self._touched.add(worker)
