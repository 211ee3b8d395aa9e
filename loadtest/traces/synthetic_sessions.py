"""Generators of agent sessions in closed loop, fitted to Claude Code and to LMCache's miniswe traces.

The rule of this module: every number of a distribution stands in a frozen mix, and the n-th session is a pure function
of (mix, seed, n). Sessions begin as a Poisson process: neither source says when its sessions began.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count, islice

import numpy as np

from loadtest.traces.quantiles import Knots, value
from loadtest.traces.sessions import Service, Session, Turn

SESSION_RATE_RPS = 0.1
"""Sessions that begin per second, where nothing else is said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionMix:
    """How sessions of one kind go on.

    A turn appends to the prompt, unless the context is full, and then a summary takes its place, or unless the prefix
    changed, and then the same length is sent but only the head is what it was.
    """

    block_tokens: int
    head_tokens: int = 0
    """Tools and system prompt: the first tokens of every prompt of every session."""
    turns: Knots
    first_tokens: Knots
    resumed_tokens: float = 1e9
    """A session whose first prompt is longer goes on from an earlier one..."""
    resumed_turns: Knots = ((0.0, 1.0), (1.0, 1.0))
    """...and has this many turns."""
    growth: Knots = ((0.0, 1.0), (1.0, 1.0))
    """By what a session multiplies its additions, drawn once for each."""
    added_tokens: Knots
    """What a turn adds, the last answer included."""
    output_tokens: Knots
    tool_s: Knots
    user_s: Knots = ((0.0, 1.0), (1.0, 1.0))
    user_ratio: float = 0.0
    """Share of pauses in which a user thinks and not a tool runs."""
    text_ratios: tuple[float, ...] = (1.0,)
    """Share of answers that hold text among those after which no user thinks, by turn; the last goes on. An answer that
    makes a user think always does."""
    service: Service
    """What answers took when the sessions were recorded; it sets the nominal times only."""
    limit_tokens: Knots = ((0.0, 1e9), (1.0, 1e9))
    """Context that a session may reach, drawn once for each."""
    summary_tokens: Knots = ((0.0, 1.0), (1.0, 1.0))
    lost_ratio: float = 0.0
    agent_ratio: float = 0.0
    """Share of answers that call sub-agents, one to three at a time, after which no tool's time passes."""
    agent: "SessionMix | None" = None


_AGENT = SessionMix(
    block_tokens=64,
    head_tokens=9_024,
    turns=((0.00, 2), (0.10, 4.5), (0.50, 10), (0.75, 13), (0.90, 22), (1.00, 26)),
    first_tokens=((0.00, 9_300), (0.50, 9_530), (1.00, 11_000)),
    added_tokens=((0.00, 100), (0.25, 500), (0.50, 1_500), (0.90, 6_500), (1.00, 20_000)),
    output_tokens=((0.00, 90), (0.50, 270), (0.90, 600), (1.00, 3_000)),
    tool_s=((0.00, 0.2), (0.50, 3), (0.90, 12), (1.00, 60)),
    service=Service(ttft_s=1.5, tpot_s=0.01),
)

CLAUDE_CODE = SessionMix(
    block_tokens=64,
    head_tokens=14_912,
    turns=(
        (0.00, 3), (0.05, 7), (0.10, 11), (0.25, 24), (0.50, 62), (0.75, 112), (0.90, 180), (0.95, 230), (0.99, 300),
        (1.00, 439),
    ),
    resumed_tokens=100_000,
    resumed_turns=(
        (0.00, 3), (0.05, 4), (0.10, 4.5), (0.25, 6), (0.50, 18), (0.75, 37), (0.90, 65), (0.95, 85), (1.00, 152),
    ),
    first_tokens=(
        (0.00, 14_950), (0.10, 15_663), (0.25, 18_774), (0.50, 25_439), (0.75, 111_275), (0.90, 259_912),
        (0.95, 358_874), (0.99, 667_618), (1.00, 851_858),
    ),
    growth=((0.00, 0.7), (0.50, 1.35), (1.00, 2.6)),
    added_tokens=(
        (0.00, 31), (0.01, 144), (0.05, 191), (0.10, 232), (0.25, 371), (0.50, 697), (0.75, 1_577), (0.90, 3_438),
        (0.95, 5_761), (0.99, 15_135), (1.00, 100_000),
    ),
    output_tokens=(
        (0.00, 1), (0.01, 59), (0.05, 92), (0.10, 107), (0.25, 140), (0.50, 221), (0.75, 439), (0.90, 894),
        (0.95, 1_517), (0.99, 3_625), (0.999, 6_500), (1.00, 18_195),
    ),
    tool_s=(
        (0.00, 0.5), (0.01, 3), (0.25, 5), (0.50, 9), (0.75, 19), (0.90, 71), (0.95, 152), (0.99, 645), (0.997, 1_200),
        (1.00, 37_415),
    ),
    user_s=(
        (0.00, 1), (0.05, 8), (0.10, 15), (0.25, 40), (0.50, 138), (0.75, 544), (0.90, 1_995), (0.95, 3_265),
        (0.99, 13_038), (1.00, 77_589),
    ),
    user_ratio=0.138,
    text_ratios=(0.83, 0.75, 0.62, 0.56, 0.5),
    service=Service(ttft_s=3.16, tpot_s=0.0152),
    limit_tokens=(
        (0.00, 140_000), (0.25, 151_000), (0.50, 157_000), (0.72, 168_000), (0.75, 220_000), (0.97, 330_000),
        (1.00, 500_000),
    ),
    summary_tokens=((0.00, 16_000), (0.25, 28_000), (0.50, 36_000), (0.75, 50_000), (1.00, 90_000)),
    lost_ratio=0.013,
    agent_ratio=0.0013,
    agent=_AGENT,
)  # fmt: skip
"""kv-cache-tester's Claude Code sessions, with their head shared by all."""

MINISWE = SessionMix(
    block_tokens=16,
    turns=((0.00, 6), (0.10, 6.5), (0.20, 9), (0.30, 12), (0.40, 13), (0.449, 14), (0.45, 30), (1.00, 30)),
    first_tokens=((0.00, 1_148), (0.10, 1_238), (0.25, 1_272), (0.50, 1_395), (0.75, 1_947), (0.90, 2_440),
                  (1.00, 3_237)),
    growth=((0.00, 0.5), (0.45, 1.2), (0.89, 2.5), (0.91, 6.0), (1.00, 9.5)),
    added_tokens=((0.00, 15), (0.25, 15.5), (0.50, 30), (0.75, 150), (0.90, 500), (0.95, 810), (0.99, 1_700),
                  (1.00, 2_810)),
    output_tokens=((0.00, 39), (0.05, 53), (0.10, 60), (0.25, 77), (0.50, 95), (0.75, 126), (0.90, 177), (0.95, 224),
                   (0.99, 291), (1.00, 348)),
    tool_s=((0.00, 0.15), (0.10, 0.25), (0.50, 0.48), (0.90, 1.00), (1.00, 3.0)),
    service=Service(ttft_s=0.0, tpot_s=0.0058),
)  # fmt: skip
"""LMCache's mini-SWE-agent sessions: short pauses, at most 30 calls."""


def session_trace(mix: SessionMix, *, seed: int, rate_rps: float = SESSION_RATE_RPS) -> Iterator[Session]:
    """Sessions without end, in order of their beginning."""
    fresh = count(_heads(mix))
    starts = np.random.default_rng((seed, 0))
    start_s = 0.0
    for number in count():
        start_s += starts.exponential(1.0 / rate_rps)
        chance = np.random.default_rng((seed, 1, number))
        session = _session(mix, f"s{number}", start_s, chance, fresh, first_head=0)
        yield _with_text(mix, session, np.random.default_rng((seed, 2, number)))


def _heads(mix: SessionMix) -> int:
    """Ids that heads take: the mix's own and those of its sub-agents."""
    return mix.head_tokens // mix.block_tokens + (_heads(mix.agent) if mix.agent else 0)


def _session(
    mix: SessionMix, name: str, start_s: float, rng: np.random.Generator, fresh: Iterator[int], *, first_head: int
) -> Session:
    head = tuple(range(first_head, first_head + mix.head_tokens // mix.block_tokens))
    size = mix.block_tokens
    growth, limit = value(mix.growth, rng.random()), value(mix.limit_tokens, rng.random())
    tokens, ids = _drawn(rng, mix.first_tokens), head
    turns: list[Turn] = []
    resumed = tokens > mix.resumed_tokens
    for number in range(_drawn(rng, mix.resumed_turns if resumed else mix.turns)):
        if number:
            added = max(1, round(growth * value(mix.added_tokens, rng.random())))
            if tokens + added > limit > tokens:
                tokens, ids = len(head) * size + _drawn(rng, mix.summary_tokens), head
            else:
                ids = head if rng.random() < mix.lost_ratio else ids[: tokens // size]
                tokens += added
        ids += tuple(islice(fresh, tokens // size - len(ids)))
        turn = Turn(input_tokens=tokens, output_tokens=_drawn(rng, mix.output_tokens), hash_ids=ids)
        turns.append(_paused(mix, turn, f"{name}/{number}", rng, fresh, first_head + len(head)))
    return Session(id=name, start_s=start_s, turns=tuple(turns), block_tokens=size)


def _paused(
    mix: SessionMix, turn: Turn, name: str, rng: np.random.Generator, fresh: Iterator[int], first_head: int
) -> Turn:
    """The turn with what follows its answer: a user, a tool or sub-agents."""
    service_s = mix.service.of(turn)
    if mix.agent is not None and rng.random() < mix.agent_ratio:
        agents = tuple(
            _session(mix.agent, f"{name}/{n}", 0.0, rng, fresh, first_head=first_head)
            for n in range(1, int(rng.integers(1, 4)) + 1)
        )
        return replace(turn, service_s=service_s, agents=agents, is_visible=False)
    is_for_user = rng.random() < mix.user_ratio
    pause_s = value(mix.user_s if is_for_user else mix.tool_s, rng.random())
    return replace(turn, service_s=service_s, think_s=pause_s, is_visible=is_for_user)


def _with_text(mix: SessionMix, session: Session, rng: np.random.Generator) -> Session:
    """The session in which some of the answers that no user waited for hold text as well."""
    ratios = mix.text_ratios
    turns = tuple(
        replace(turn, is_visible=turn.is_visible or rng.random() < ratios[min(number, len(ratios) - 1)])
        for number, turn in enumerate(session.turns)
    )
    return replace(session, turns=turns)


def _drawn(rng: np.random.Generator, knots: Knots) -> int:
    return max(1, round(value(knots, rng.random())))
