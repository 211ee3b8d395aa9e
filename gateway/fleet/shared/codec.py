"""Steps, answers and messages as the script in `pins.lua` has them.

The rule of this module: nothing but numbers and workers' ids goes there, so no client's text ever does; times are
written as ages and read as times of this replica's clock.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from gateway.core.conversation.identity import ConversationId
from gateway.core.record import record
from gateway.core.types import WorkerId
from gateway.fleet.shared.pins import Pin

_ALL_WORKERS: Final = -1
_NO_WORKER: Final = WorkerId("")


class Op(StrEnum):
    """What a step does; the values are the script's."""

    CLAIM = "claim"
    PUT = "put"
    MOVE = "move"
    CLOSE = "close"
    MADE = "made"
    FIND = "find"


@record
class Step:
    """One step of a call."""

    op: Op
    conversation: ConversationId
    """Or of a response the `identity.response_end`, which is a hash of the same kind."""
    seen_s: float
    worker_id: WorkerId = _NO_WORKER
    kv_tokens: int = 0
    turns: int = 0
    from_worker: WorkerId = _NO_WORKER
    part_of: ConversationId | None = None

    def pin(self) -> Pin:
        """The pin as it was sent."""
        return Pin(
            worker_id=self.worker_id,
            kv_tokens=self.kv_tokens,
            turns=self.turns,
            last_seen_s=self.seen_s,
            part_of=self.part_of,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What a call of the script came to."""

    swept: int
    occupancy: Mapping[WorkerId, int]
    """KV tokens by worker, of those asked about; of all, those without pins are left out."""
    answers: Sequence[Pin | None]
    """Per step: the pin that stands, or None where it stands as it was sent."""


def step_of(op: Op, conversation: ConversationId, pin: Pin, from_worker: WorkerId = _NO_WORKER) -> Step:
    """A step that sends a pin."""
    return Step(
        op=op,
        conversation=conversation,
        seen_s=pin.last_seen_s,
        worker_id=pin.worker_id,
        kv_tokens=pin.kv_tokens,
        turns=pin.turns,
        from_worker=from_worker,
        part_of=pin.part_of,
    )


def arguments(
    steps: Sequence[Step], *, workers: Sequence[WorkerId] | None, now_s: float
) -> Iterator[bytes | str | int]:
    """The script's arguments from the seventh on; `workers` None asks for the sums of all."""
    yield _ALL_WORKERS if workers is None else len(workers)
    yield from workers or ()
    for step in steps:
        yield step.op.value
        yield written(step.conversation)
        yield step.worker_id
        yield max(0, step.kv_tokens)
        yield max(0, step.turns)
        yield max(0, round((now_s - step.seen_s) * 1e3))
        yield step.from_worker if step.part_of is None else written(step.part_of)


def reply_of(raw: list[Any], now_s: float) -> Reply:
    """Read what the script returned."""
    swept, flat, answers = raw
    sums = zip(flat[::2], flat[1::2], strict=True)
    return Reply(
        swept=swept,
        occupancy={WorkerId(worker.decode()): int(tokens) for worker, tokens in sums if worker},
        answers=[None if answer is None else _pin(*answer, now_s=now_s) for answer in answers],
    )


def message_of(raw: bytes, *, caller: bytes, now_s: float) -> tuple[ConversationId, Pin | None] | None:
    """Read a published move or close; None for one's own."""
    sender, worker, kv_tokens, turns, conversation = raw.split(b"\n")
    if sender == caller:
        return None
    return read(conversation), (_pin(worker, kv_tokens, turns, 0, now_s=now_s) if worker else None)


def written(conversation: ConversationId) -> bytes:
    """The 16 hexadecimal digits of a conversation."""
    return b"%016x" % conversation


def read(digits: bytes) -> ConversationId:
    """The conversation of 16 hexadecimal digits."""
    return ConversationId(int(digits, 16))


def _pin(
    worker: bytes, kv_tokens: bytes | int, turns: bytes | int, idle_ms: int, part_of: bytes = b"", *, now_s: float
) -> Pin:
    return Pin(
        worker_id=WorkerId(worker.decode()),
        kv_tokens=int(kv_tokens),
        turns=int(turns),
        last_seen_s=now_s - idle_ms / 1e3,
        part_of=read(part_of) if part_of else None,
    )
