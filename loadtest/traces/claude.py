"""Reader of Claude Code sessions (kv-cache-tester's format).

The rule of this module: a session's block ids mean nothing in another session, so each session gets a range of its own;
only the head of tools and system prompt may be shared, where that is asked for. Sub-agents run at the same time as each
other, and their caller waits for all of them: so they are recorded, since an entry's `t` is when a sub-agent *ended*.

Which answers show the user text: of answers that were not streamed the file lists what they hold, and half of those
that call tools hold text as well. Of streamed answers that list is no record: it says `text` for every one of them and
`tool_use` for none, whatever the stop reason. So of these the stop reason alone counts, and a call of tools is taken to
show nothing. One answer in eleven, streamed, has neither: it is taken to show text unless results of tools follow it,
and what follows is the user's text for 98 % of them.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

import msgspec

from loadtest.traces.files import json_lines, opened
from loadtest.traces.sessions import Session, Turn
from loadtest.traces.types import TraceError

BLOCK_TOKENS = 64
"""Tokens that one id of the file stands for."""
SHARED_IDS = 1 << 20
"""Ids below this are heads that sessions share."""
HEAD_IDS = 1 << 12
"""Ids set aside for the head of one model: 262,144 tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaudeOptions:
    """How sessions are read."""

    block_tokens: int = BLOCK_TOKENS
    """A multiple of 64: so many tokens become one block, which keeps long sessions small in memory."""
    context_scale: float = 1.0
    """Multiplies prompts, and what they share, but not outputs: so that the conversations fit a small KV cache."""
    shared_head: bool = False
    """Sessions of one model begin with the same blocks, as far as their tools and system prompts reach. An upper bound:
    real sessions share a head only where the client's version and its tools are the same."""
    agents: bool = True

    @property
    def stride(self) -> float:
        """The file's blocks that go into one block of the session."""
        return self.block_tokens / BLOCK_TOKENS / self.context_scale


STREAMED = "s"
TEXT, TOOL_USE, TOOL_RESULT = "text", "tool_use", "tool_result"


class _Entry(msgspec.Struct, frozen=True):
    """A request, or a sub-agent with requests of its own, whose times count from its beginning."""

    t: float
    type: str
    stop: str = ""
    input_types: list[str] = []
    output_types: list[str] | None = None
    model: str | None = None
    input_tokens: int = msgspec.field(name="in", default=0)
    output_tokens: int = msgspec.field(name="out", default=0)
    api_time: float | None = None
    think_time: float | None = None
    h: list[int] = []
    agent_id: str | None = None
    duration_ms: float | None = None
    requests: list["_Entry"] = []
    tool_tokens: int = 0
    system_tokens: int = 0

    @property
    def answered_s(self) -> float:
        return self.t + (self.api_time or 0.0)

    @property
    def began_s(self) -> float:
        """When a sub-agent began, on its caller's clock."""
        return self.t - self.lasted_s

    @property
    def lasted_s(self) -> float:
        return self.requests[-1].answered_s if self.duration_ms is None else self.duration_ms / 1000.0


class _Line(msgspec.Struct, frozen=True):
    id: str
    models: list[str]
    requests: list[_Entry]
    block_size: int
    tool_tokens: int = 0
    system_tokens: int = 0


def claude_sessions(name: str, options: ClaudeOptions, starts_s: Iterator[float]) -> Iterator[Session]:
    """The sessions of a file in file order; the n-th begins at the n-th of `starts_s`, for the file does not say."""
    if options.block_tokens % BLOCK_TOKENS:
        raise TraceError(f"{name}: block must be a multiple of {BLOCK_TOKENS}, got {options.block_tokens}")
    next_id = SHARED_IDS
    heads: dict[str, int] = {}
    with opened(Path(name)) as file:
        for (line, row), start_s in zip(json_lines(name, file, _Line), starts_s, strict=False):
            if row.block_size != BLOCK_TOKENS:
                raise TraceError(f"{name}:{line}: blocks of {row.block_size} tokens instead of {BLOCK_TOKENS}")
            try:
                blocks = _Blocks(row, next_id, heads, options)
                session = _session(row.id, row.requests, blocks, options)
            except (ValueError, IndexError) as error:
                raise TraceError(f"{name}:{line}: {error}") from error
            next_id += blocks.size
            if session is not None:
                yield replace(session, start_s=start_s)


class _Blocks:
    """The ids of one session, moved into a range of their own."""

    def __init__(self, row: _Line, first_id: int, heads: dict[str, int], options: ClaudeOptions) -> None:
        asked = [entry for one in row.requests for entry in (one, *one.requests)]
        self.size = 1 + max((max(_ends(entry.h), default=0) for entry in asked), default=0)
        # One int object per block, however many prompts hold it.
        self._ids = list(range(first_id, first_id + self.size))
        self._stride = options.stride
        if options.shared_head:
            self._share_heads(row, heads)

    def _share_heads(self, row: _Line, heads: dict[str, int]) -> None:
        began = [(str(e.model), row.tool_tokens + row.system_tokens, e.h) for e in row.requests[:1] if not e.requests]
        called = [e for e in row.requests if e.requests]
        began += [(f"{e.requests[0].model} called", e.tool_tokens + e.system_tokens, e.requests[0].h) for e in called]
        for key, head_tokens, runs in began:
            first = heads.setdefault(key, len(heads) * HEAD_IDS)
            head = min(HEAD_IDS, head_tokens // BLOCK_TOKENS)
            for position, local in zip(range(head), _expanded(runs), strict=False):
                self._ids[local] = first + position

    def of(self, runs: Sequence[int]) -> tuple[int, ...]:
        """The ids that runs [start, length, start, length, ...] stand for, as many as the options leave."""
        ids: list[int] = []
        for start, run in _pairs(runs):
            ids += self._ids[start : start + run]
        # Ids are chained, so the id at a place stands for everything before it too.
        if self._stride.is_integer():
            step = int(self._stride)
            return tuple(ids[step - 1 :: step])
        return tuple([ids[math.ceil((n + 1) * self._stride) - 1] for n in range(int(len(ids) / self._stride))])


def _session(name: str, entries: Sequence[_Entry], blocks: _Blocks, options: ClaudeOptions) -> Session | None:
    """The session, beginning at 0; None where it has no request."""
    asked = [n for n, entry in enumerate(entries) if entry.type != "subagent"]
    names = count(1)
    turns = []
    for at, after in zip(asked, [*asked[1:], len(entries)], strict=True):
        entry = entries[at]
        called = entries[at + 1 : after] if options.agents else ()
        following = entries[after] if after < len(entries) else None
        agents = [_agent(f"{name}/{next(names)}", entry, agent, blocks, options) for agent in called if agent.requests]
        turns.append(
            Turn(
                input_tokens=max(1, round(entry.input_tokens * options.context_scale)),
                output_tokens=max(1, entry.output_tokens),
                hash_ids=blocks.of(entry.h),
                think_s=_pause_s(entry, called, following),
                service_s=entry.api_time,
                agents=tuple(agents),
                is_visible=_shows_text(entry, None if after == len(entries) else entries[after]),
            )
        )
    return Session(id=name, start_s=0.0, turns=tuple(turns), block_tokens=options.block_tokens) if turns else None


def _agent(name: str, caller: _Entry, entry: _Entry, blocks: _Blocks, options: ClaudeOptions) -> Session:
    session = _session(name, entry.requests, blocks, options)
    assert session is not None
    reports_s = max(0.0, entry.lasted_s - entry.requests[-1].answered_s)
    turns = (*session.turns[:-1], replace(session.turns[-1], think_s=reports_s))
    return replace(session, turns=turns, start_s=max(0.0, entry.began_s - caller.answered_s))


def _shows_text(entry: _Entry, following: _Entry | None) -> bool:
    """Whether the answer holds text, as far as the file tells; see above."""
    if entry.type != STREAMED and entry.output_types is not None:
        return TEXT in entry.output_types
    if entry.stop:
        return entry.stop != TOOL_USE
    return following is None or TOOL_RESULT not in following.input_types


def _pause_s(entry: _Entry, called: Sequence[_Entry], following: _Entry | None) -> float:
    """From the answer, or the end of the last sub-agent, to the next request; the session's last turn has none."""
    if following is None:
        return 0.0
    if not called and following.think_time is not None:
        return following.think_time
    return max(0.0, following.t - max([entry.answered_s, *(agent.t for agent in called)]))


def _pairs(runs: Sequence[int]) -> Iterator[tuple[int, int]]:
    return zip(runs[::2], runs[1::2], strict=True)


def _ends(runs: Sequence[int]) -> Iterator[int]:
    return (start + run - 1 for start, run in _pairs(runs))


def _expanded(runs: Sequence[int]) -> Iterator[int]:
    return (block for start, run in _pairs(runs) for block in range(start, start + run))
