"""Reads traces by their specs (`loadtest.traces.spec` says how they are written).

The rule of this module: a trace is read no further than its limit asks for, and whatever is wrong with a spec or a file
is a `TraceError`.
"""

import heapq
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from loadtest.traces.chats import SWE_AGENT, TAUBENCH, ChatPauses, chat_sessions
from loadtest.traces.claude import BLOCK_TOKENS, ClaudeOptions, claude_sessions
from loadtest.traces.lmcache import lmcache_sessions
from loadtest.traces.mixing import mixed
from loadtest.traces.resample import resampled
from loadtest.traces.rescale import scaled
from loadtest.traces.retime import at_rate, parse_phases, phased, sped_up
from loadtest.traces.rows import azure_requests, mooncake_requests
from loadtest.traces.servegen import ROW_S, servegen_requests
from loadtest.traces.sessions import Session, steps
from loadtest.traces.spec import Options, TraceSpec, parse_spec
from loadtest.traces.synthetic import SyntheticMix, synthetic_trace
from loadtest.traces.synthetic_rows import AZURE_CODE, AZURE_CONV, row_trace
from loadtest.traces.synthetic_sessions import CLAUDE_CODE, MINISWE, SESSION_RATE_RPS, session_trace
from loadtest.traces.synthetic_tools import ToolMix, tool_trace
from loadtest.traces.types import TraceError, TraceRequest
from loadtest.traces.workload import Workload

SYNTHETIC_REQUESTS = 12_031
"""Length of a synthetic trace without a limit: that of Mooncake's conversation trace."""
TEXT_BLOCK_TOKENS = 16
"""Block of traces that hold text: vLLM's."""


@dataclass(frozen=True, slots=True)
class _Source:
    """What a loader is given."""

    name: str
    options: Options
    limit: int | None
    seed: int

    def starts_s(self) -> Iterator[float]:
        """When sessions begin: a Poisson process, for no trace of sessions says it."""
        rng = np.random.default_rng((self.seed, 0))
        at_s = 0.0
        while True:
            at_s += float(rng.exponential(1.0 / SESSION_RATE_RPS))
            yield at_s


def load_trace(spec: str, *, limit: int | None = None, seed: int = 0, rate_scale: float = 1.0) -> list[TraceRequest]:
    """The first `limit` requests of a trace in order of arrival, in open loop; a `rate_scale` of 2 doubles the rate.

    Turns of sessions come when they would if answers took as long as recorded, or as `Service` assumes. The seed
    spreads arrivals that a file rounds, draws those that it does not have, and makes a synthetic trace. What a file
    yields does not depend on the limit, unless `rate` or `horizon` is given. Raises `TraceError` where the spec is
    unknown, the file cannot be read or a row is not what its format says.
    """
    return load_workload(spec, limit=limit, seed=seed, rate_scale=rate_scale).flattened()[:limit]


def load_workload(spec: str, *, limit: int | None = None, seed: int = 0, rate_scale: float = 1.0) -> Workload:
    """The same trace as a workload, with its sessions in closed loop.

    The limit is that of `load_trace`: sessions end with their last turn that belongs to the first `limit` requests by
    nominal arrival. Of several traces each is limited to so many. `rate_scale` moves beginnings, not later turns.
    """
    if rate_scale <= 0:
        raise TraceError(f"the rate scale must be above 0, got {rate_scale:g}")
    parts = {str(n): _load(part, limit, seed + n) for n, part in enumerate(parse_spec(spec))}
    return sped_up(parts["0"] if len(parts) == 1 else mixed(parts), rate_scale)


def _load(spec: TraceSpec, limit: int | None, seed: int) -> Workload:
    options = Options(spec.text, dict(spec.options))
    # What is drawn anew is drawn from the whole.
    source = _Source(spec.name, options, None if "horizon" in options.values else limit, seed)
    if spec.kind not in _LOADERS:
        raise TraceError(f"unknown trace {spec.text!r}: there are {', '.join(_LOADERS)}")
    workload = _LOADERS[spec.kind](source)
    if not workload.requests and not workload.sessions:
        raise TraceError(f"{spec.text}: no requests")
    return _altered(workload, options, limit, seed)


def _altered(workload: Workload, options: Options, limit: int | None, seed: int) -> Workload:
    """The workload with the options that all kinds take."""
    context = options.positive("context")  # unless its loader took it
    horizon_s, rate_rps, phases = options.positive("horizon"), options.positive("rate"), options.text("phases")
    options.done()
    try:
        if context is not None:
            workload = scaled(workload, context)
        if horizon_s is not None:
            drawn = resampled(workload, horizon_s, seed=seed)
            workload = Workload(requests=drawn.requests[:limit], sessions=_closed(drawn.sessions, limit).sessions)
        if rate_rps is not None:
            workload = at_rate(workload, rate_rps)
        return workload if phases is None else phased(workload, parse_phases(phases))
    except ValueError as error:
        raise TraceError(f"{options.spec}: {error}") from error


def _mooncake(source: _Source) -> Workload:
    jitter = source.options.flag("jitter", default=True)
    return _open(mooncake_requests(source.name, jitter=jitter, seed=source.seed), source.limit)


def _azure(source: _Source) -> Workload:
    return _open(azure_requests(source.name), source.limit)


def _servegen(source: _Source) -> Workload:
    from_s = source.options.number("from", 0.0)
    to_s = source.options.number("to", from_s + ROW_S)
    if to_s <= from_s:
        raise TraceError(f"{source.options.spec}: the window must end after it begins")
    rate_rps = source.options.positive("rate")
    return _open(
        servegen_requests(source.name, from_s=from_s, to_s=to_s, rate_rps=rate_rps, seed=source.seed), source.limit
    )


def _claude(source: _Source) -> Workload:
    options = ClaudeOptions(
        block_tokens=source.options.whole("block", BLOCK_TOKENS),
        context_scale=source.options.positive("context") or 1.0,
        shared_head=source.options.flag("shared_head", default=False),
        agents=source.options.flag("agents", default=True),
    )
    return _closed(claude_sessions(source.name, options, source.starts_s()), source.limit)


def _lmcache(source: _Source) -> Workload:
    block_tokens = source.options.whole("block", TEXT_BLOCK_TOKENS)
    return _closed(lmcache_sessions(source.name, block_tokens, source.starts_s()), source.limit)


def _taubench(source: _Source) -> Workload:
    pauses = ChatPauses(tool_s=source.options.number("tool", 1.0), user_s=source.options.number("user", 20.0))
    block_tokens = source.options.whole("block", TEXT_BLOCK_TOKENS)
    found = chat_sessions(source.name, TAUBENCH, pauses, block_tokens, source.starts_s(), seed=source.seed)
    return _closed(found, source.limit)


def _swe(source: _Source) -> Workload:
    tool_s = source.options.number("tool", 1.0)
    pauses = ChatPauses(tool_s=tool_s, user_s=tool_s)  # its tools answer as a user or as a tool
    block_tokens = source.options.whole("block", TEXT_BLOCK_TOKENS)
    found = chat_sessions(source.name, SWE_AGENT, pauses, block_tokens, source.starts_s(), seed=source.seed)
    return _closed(found, source.limit)


def _synthetic(source: _Source) -> Workload:
    requests = SYNTHETIC_REQUESTS if source.limit is None else source.limit
    seed = source.seed
    match source.name:
        case "mooncake":
            return _open(synthetic_trace(SyntheticMix(), requests, seed=seed), requests)
        case "azure-conv":
            return _open(row_trace(AZURE_CONV, requests, seed=seed), requests)
        case "azure-code":
            return _open(row_trace(AZURE_CODE, requests, seed=seed), requests)
        case "tool-agent":
            return _open(tool_trace(ToolMix(), requests, seed=seed), requests)
        case "claude-code":
            return _closed(session_trace(CLAUDE_CODE, seed=seed), requests)
        case "miniswe":
            return _closed(session_trace(MINISWE, seed=seed), requests)
    raise TraceError(
        f"unknown synthetic trace {source.name!r}: there are mooncake, azure-conv, azure-code, tool-agent, "
        "claude-code and miniswe"
    )


_LOADERS: dict[str, Callable[[_Source], Workload]] = {
    "mooncake": _mooncake,
    "azure": _azure,
    "servegen": _servegen,
    "claude": _claude,
    "lmcache": _lmcache,
    "taubench": _taubench,
    "swe": _swe,
    "synthetic": _synthetic,
}


def _open(requests: Iterable[TraceRequest], limit: int | None) -> Workload:
    return Workload(requests=tuple(islice(requests, limit)))


def _closed(sessions: Iterable[Session], limit: int | None) -> Workload:
    """The sessions, each up to its last turn among the first `limit` by nominal arrival."""
    if limit is None:
        return Workload(sessions=tuple(sessions))
    kept: list[Session] = []
    latest_s: list[float] = []  # a heap of the negated arrivals of the first `limit` turns so far
    for session in sessions:
        if len(latest_s) == limit and session.start_s > -latest_s[0]:
            break
        kept.append(session)
        for step in steps(session):
            heapq.heappush(latest_s, -step.at_s)
            if len(latest_s) > limit:
                heapq.heappop(latest_s)
    return Workload(sessions=tuple(_cut(session, -latest_s[0]) for session in kept))


def _cut(session: Session, last_s: float) -> Session:
    """The session without the turns of its own that come after `last_s`; sub-agents that are called stay whole."""
    turns = sum(step.at_s <= last_s for step in steps(session) if step.session is session)
    return replace(session, turns=session.turns[:turns])
