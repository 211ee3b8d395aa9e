"""Conversations in the schema that live and simulated runs share, and what those of a run come to.

The rule of this module: pure, from a run's requests and their records alone, joined by index; it asks nobody how a
request was served. A conversation is what a user waits for: a session with all sub-agents that were called in it. A
request without a session belongs to none and is left out.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby, pairwise
from pathlib import Path

import msgspec
import numpy as np

from gateway.core.types import Path as ServedOn
from loadtest.client.records import Record
from loadtest.traces.types import TraceRequest


class ConversationRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One conversation of a run, as its user saw it. Times are seconds of the run's clock."""

    conversation: str
    """The id of its session; sub-agents have sessions of their own."""
    turns_done: int
    """Requests that ended well, those of sub-agents included."""
    turns_expected: int
    """Requests that the trace has of it."""
    ok: bool
    """All that were expected ended well."""
    started_s: float
    """When its first request was due."""
    ttfet_s: float | None
    """Time to first effective token: from its start to the first token of an answer that shows its user text. None
    where none came, or where a request that was due before that answer's failed or was cancelled: what a failure
    leads to is no answer, and comes sooner."""
    ttfet_think_s: float | None
    """Of that, the time in which none of its requests was under way: no router makes it shorter."""
    e2e_s: float | None
    """From its start to the last end of an answer, or of an attempt."""
    think_s: float
    """Of that, the time in which none of its requests was under way: what its tools and its user took."""
    last_tpot_s: float | None
    """Of the answer to its last turn; None where that was not reached or has under two tokens."""
    input_tokens: int
    output_tokens: int
    """As far as answers told."""
    transfers: int
    """Requests on the remote path: so often was KV handed from one worker to another."""
    workers: tuple[str, ...]
    """Those that decoded for it, each once, in the order in which they first did."""
    moves: int
    """How often a turn was decoded elsewhere than the turn before it in its session, where both are known."""


class Tail(msgspec.Struct, frozen=True, kw_only=True):
    """A distribution in seconds, over `count` conversations; percentiles interpolate linearly."""

    count: int
    mean: float
    p50: float
    p95: float
    p99: float


class ConversationSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The conversations of a run in figures; None where nothing could be measured."""

    asked: int
    """Conversations that the run was to begin."""
    finished: int
    """All of whose requests ended well."""
    finished_ratio: float | None
    """Of those asked."""
    ttfet_s: Tail | None
    """Of all that have one, finished or not; see its `count` for the others."""
    ttfet_work_s: Tail | None
    """The same without `ttfet_think_s`: tools and users of agents may take minutes before the first text."""
    e2e_s: Tail | None
    last_tpot_s: Tail | None
    """Mean gap between the tokens of the last turn. This one and the one above are of finished conversations."""
    transfers_mean: float | None
    transfers: dict[int, int]
    """How many conversations had so many transfers. These two and the one below are of all that were begun."""
    moves_mean: float | None


def conversations(requests: Iterable[TraceRequest], records: Iterable[Record]) -> list[ConversationRecord]:
    """One record for each conversation that was begun, in order of their beginning.

    Args:
        requests: all that the run was to send, such as `Workload.flattened()`.
        records: of those that were sent, in any order.

    Raises:
        ValueError: a record is of no request, or a request has two.
    """
    known = {request.index: request for request in requests}
    seen: dict[int, Record] = {}
    for record in records:
        if record.index not in known or record.index in seen:
            problem = "is recorded twice" if record.index in seen else "is not of this trace"
            raise ValueError(f"request {record.index} {problem}")
        seen[record.index] = record
    asked: dict[str, list[TraceRequest]] = {}
    for request in known.values():
        if request.conversation is not None:
            asked.setdefault(request.conversation, []).append(request)
    made = [_made(name, turns, seen) for name, turns in asked.items() if any(one.index in seen for one in turns)]
    return sorted(made, key=lambda one: one.started_s)


def summarise_conversations(found: Sequence[ConversationRecord], *, asked: int | None = None) -> ConversationSummary:
    """The figures of a run; `asked` is how many conversations it was to begin, if more than were begun."""
    finished = [one for one in found if one.ok]
    total = len(found) if asked is None else asked
    return ConversationSummary(
        asked=total,
        finished=len(finished),
        finished_ratio=len(finished) / total if total else None,
        ttfet_s=tail(one.ttfet_s for one in found),
        ttfet_work_s=tail(
            one.ttfet_s - one.ttfet_think_s
            for one in found
            if one.ttfet_s is not None and one.ttfet_think_s is not None
        ),
        e2e_s=tail(one.e2e_s for one in finished),
        last_tpot_s=tail(one.last_tpot_s for one in finished),
        transfers_mean=_mean([one.transfers for one in found]),
        transfers=dict(sorted(Counter(one.transfers for one in found).items())),
        moves_mean=_mean([one.moves for one in found]),
    )


def tail(values: Iterable[float | None]) -> Tail | None:
    """Of the values that are known; None without any."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    p50, p95, p99 = np.percentile(known, (50, 95, 99)).tolist()
    return Tail(count=len(known), mean=sum(known) / len(known), p50=p50, p95=p95, p99=p99)


def write_conversations(path: Path, found: Iterable[ConversationRecord]) -> None:
    """Writes JSON Lines, one conversation a line."""
    path.write_bytes(msgspec.json.Encoder().encode_lines(found))


def read_conversations(path: Path) -> list[ConversationRecord]:
    """Reads what `write_conversations` wrote; raises `msgspec.MsgspecError` where a line is no such record."""
    return msgspec.json.Decoder(ConversationRecord).decode_lines(path.read_bytes())


def _made(name: str, turns: Sequence[TraceRequest], seen: dict[int, Record]) -> ConversationRecord:
    """The record of a conversation of which at least one request was sent."""
    sent = sorted(((seen[one.index], one) for one in turns if one.index in seen), key=lambda pair: pair[0].scheduled_s)
    records = [record for record, _ in sent]
    started_s = records[0].scheduled_s
    ends_s = [record.scheduled_s + record.e2e_s for record in records if record.e2e_s is not None]
    e2e_s = max(ends_s) - started_s if ends_s else None
    done = sum(record.ok for record in records)
    ttfet_s, ttfet_think_s = _ttfet_s(sent)
    last = seen.get(max((one for one in turns if one.root is None), key=_order, default=turns[-1]).index)
    return ConversationRecord(
        conversation=name,
        turns_done=done,
        turns_expected=len(turns),
        ok=done == len(turns),
        started_s=started_s,
        ttfet_s=ttfet_s,
        ttfet_think_s=ttfet_think_s,
        e2e_s=e2e_s,
        think_s=0.0 if e2e_s is None else max(0.0, e2e_s - _busy_s(records)),
        last_tpot_s=last.tpot_s if last is not None and last.ok else None,
        input_tokens=sum(record.input_tokens or 0 for record in records),
        output_tokens=sum(record.output_tokens or 0 for record in records),
        transfers=sum(record.path == ServedOn.REMOTE for record in records),
        workers=tuple(dict.fromkeys(record.worker for record in records if record.worker is not None)),
        moves=_moves(sent),
    )


def _mean(counts: Sequence[int]) -> float | None:
    return sum(counts) / len(counts) if counts else None


def _order(request: TraceRequest) -> tuple[int, int]:
    """By which turns of one session follow each other, whether the trace numbers them or not."""
    return request.turn, request.index


def _ttfet_s(sent: Sequence[tuple[Record, TraceRequest]]) -> tuple[float, float] | tuple[None, None]:
    """And what of it nobody worked; in order of due times, all before that answer must have ended well."""
    started_s = sent[0][0].scheduled_s
    shown = [
        (record.scheduled_s - started_s + record.ttft_s, record)
        for record, one in sent
        if one.is_visible and record.ttft_s is not None
    ]
    if not shown:
        return None, None
    ttfet_s, first = min(shown, key=lambda pair: pair[0])
    before = [record for record, _ in sent if record.scheduled_s < first.scheduled_s]
    if not all(record.ok for record in before):
        return None, None
    waited_s = first.scheduled_s - started_s
    return ttfet_s, max(0.0, waited_s - _busy_s(before, until_s=first.scheduled_s))


def _busy_s(records: Iterable[Record], *, until_s: float = float("inf")) -> float:
    """How long at least one request, in order of their due times, was under way."""
    busy_s, covered_s = 0.0, float("-inf")
    for record in records:
        end_s = min(until_s, record.scheduled_s + (record.e2e_s or 0.0))
        busy_s += max(0.0, end_s - max(covered_s, record.scheduled_s))
        covered_s = max(covered_s, end_s)
    return busy_s


def _moves(sent: Sequence[tuple[Record, TraceRequest]]) -> int:
    in_turn = sorted(sent, key=lambda pair: (str(pair[1].session), *_order(pair[1])))
    return sum(
        one.worker != other.worker
        for _, turns in groupby(in_turn, key=lambda pair: pair[1].session)
        for one, other in pairwise(record for record, _ in turns if record.worker is not None)
    )
