"""What a large fleet is asked for: conversations, and single requests.

The rule of this module: a workload is a pure function of its size, its rate and a seed. Conversations are in closed
loop: nobody asks the next thing before the last is answered.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from loadtest.traces.sessions import DEFAULT_SERVICE, Session, Turn
from loadtest.traces.synthetic import SyntheticMix, synthetic_trace
from loadtest.traces.synthetic_rows import AZURE_CONV, row_trace
from loadtest.traces.types import MOONCAKE_BLOCK_TOKENS, TraceRequest
from loadtest.traces.workload import Workload

LEAST_PAUSE_S = 1.0
"""Between an answer and the next turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleMix:
    """Requests as in Mooncake's conversations, and requests as in Azure's."""

    conversation_ratio: float = 0.5
    """Of the requests, those like Mooncake's; those of them that nothing follows are single ones too."""
    gap_scale: float = 0.1
    """Between turns, of Mooncake's: runs are short, and conversations must go on within them."""
    trim_ratio: float = 0.0
    """Of later turns with a long history, how many have it cut; Mooncake's clients cut a third."""
    tenants: int = 0
    """Requests like Azure's begin with one of so many system prompts."""
    zipf: float = 1.0
    """A tenant's share falls with its number to this power."""
    head_blocks: int = 4
    """Of a system prompt."""


def scale_workload(mix: ScaleMix, requests: int, rate_rps: float, *, seed: int) -> Workload:
    """About so many requests at this mean rate."""
    turns = round(requests * mix.conversation_ratio)
    chat_mix = SyntheticMix(
        rate_rps=rate_rps * mix.conversation_ratio, gap_scale=mix.gap_scale, trim_ratio=mix.trim_ratio
    )
    chats = synthetic_trace(chat_mix, turns, seed=seed) if turns else []
    singles = _rows(mix, requests - turns, rate_rps, 1 + max((max(one.hash_ids) for one in chats), default=0), seed)
    by_session: dict[str | None, list[TraceRequest]] = {}
    for one in chats:
        by_session.setdefault(one.session, []).append(one)
    sessions = [_session(str(name), own) for name, own in by_session.items() if len(own) > 1]
    # A conversation of one turn is a single request, and nobody gives it a name.
    singles += [replace(own[0], session=None) for own in by_session.values() if len(own) == 1]
    singles.sort(key=lambda one: one.arrival_s)
    return Workload(requests=tuple(singles), sessions=tuple(sessions))


def history_blocks(requests: Sequence[TraceRequest]) -> dict[int, int]:
    """By request the leading blocks that a gateway takes for those of the turn before; of later turns only.

    Where a client has cut the history, all that it sends but the last block looks like what it sent before.
    """
    found: dict[int, int] = {}
    last: dict[str, TraceRequest] = {}
    for one in requests:
        if one.session is None:
            continue
        before = last.get(one.session)
        if before is not None:
            whole = before.input_tokens // before.block_tokens
            has_grown = one.hash_ids[:whole] == before.hash_ids[:whole]
            found[one.index] = whole if has_grown else max(0, one.input_tokens // one.block_tokens - 1)
        last[one.session] = one
    return found


def _session(name: str, requests: Sequence[TraceRequest]) -> Session:
    """The turns in closed loop: each follows the answer before it by what is left of the gap between them."""
    turns = []
    for one, after in zip(requests, [*requests[1:], None], strict=True):
        gap_s = 0.0 if after is None else after.arrival_s - one.arrival_s
        turn = Turn(input_tokens=one.input_tokens, output_tokens=one.output_tokens, hash_ids=one.hash_ids)
        turns.append(replace(turn, think_s=max(LEAST_PAUSE_S, gap_s - DEFAULT_SERVICE.of(turn))))
    return Session(id=name, start_s=requests[0].arrival_s, turns=tuple(turns))


def _rows(mix: ScaleMix, requests: int, rate_rps: float, first_id: int, seed: int) -> list[TraceRequest]:
    """Requests like Azure's, with their tenants' system prompts before them."""
    rows = row_trace(replace(AZURE_CONV, rate_rps=rate_rps * (1.0 - mix.conversation_ratio)), requests, seed=seed + 1)
    if not mix.tenants:
        return rows
    weights = 1.0 / np.arange(1, mix.tenants + 1) ** mix.zipf
    tenants = np.random.default_rng((seed, 2)).choice(mix.tenants, len(rows), p=weights / weights.sum()).tolist()
    next_id = first_id + mix.tenants * mix.head_blocks
    found = []
    for one, tenant in zip(rows, tenants, strict=True):
        begin = first_id + tenant * mix.head_blocks
        own = -(-one.input_tokens // MOONCAKE_BLOCK_TOKENS)
        found.append(
            replace(
                one,
                input_tokens=mix.head_blocks * MOONCAKE_BLOCK_TOKENS + one.input_tokens,
                hash_ids=(*range(begin, begin + mix.head_blocks), *range(next_id, next_id + own)),
            )
        )
        next_id += own
    return found
