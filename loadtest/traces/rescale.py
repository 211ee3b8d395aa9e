"""Makes the contexts of a workload shorter, so that long conversations fit a small KV cache or a short context window.

The rule of this module: only prompts change. Outputs, pauses and beginnings stay as they are, and so does what shares
what: prompts that shared a share of their blocks share the same share of them, rounded down to whole blocks, so that
what was a prefix of another prompt still is one.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

from loadtest.traces.block_ids import Ids
from loadtest.traces.sessions import Session
from loadtest.traces.workload import Workload

LARGEST_DENOMINATOR = 1_000_000
Shrink = Callable[[int, Ids, int], tuple[int, Ids]]
"""From a prompt's tokens, its block ids and the tokens of a block to the scaled tokens and ids."""


def scaled(workload: Workload, factor: float) -> Workload:
    """The workload with all prompts `factor` times as long, of its requests, its sessions and their sub-agents.

    A prompt keeps at least one block of tokens, or all of it where it has fewer.

    Raises:
        ValueError: the factor is not above 0 and at most 1.
    """
    shrink = _shrinker(factor)
    requests = []
    for one in workload.requests:
        tokens, ids = shrink(one.input_tokens, one.hash_ids, one.block_tokens)
        requests.append(replace(one, input_tokens=tokens, hash_ids=ids))
    return Workload(requests=tuple(requests), sessions=tuple(_session(one, shrink) for one in workload.sessions))


def scaled_session(session: Session, factor: float) -> Session:
    """The same for one session."""
    return _session(session, _shrinker(factor))


def _session(session: Session, shrink: Shrink) -> Session:
    turns = []
    for turn in session.turns:
        tokens, ids = shrink(turn.input_tokens, turn.hash_ids, session.block_tokens)
        agents = tuple(_session(agent, shrink) for agent in turn.agents)
        turns.append(replace(turn, input_tokens=tokens, hash_ids=ids, agents=agents))
    return replace(session, turns=tuple(turns))


def _shrinker(factor: float) -> Shrink:
    if not 0.0 < factor <= 1.0:
        raise ValueError(f"contexts are scaled by a factor above 0 and at most 1, got {factor:g}")
    if factor == 1.0:
        return lambda tokens, ids, _: (tokens, ids)
    # The fraction that was meant: a tenth of 100 blocks is 10 of them, and a third of three is one.
    exact = Fraction(factor).limit_denominator(LARGEST_DENOMINATOR) or Fraction(factor)
    ends: list[int] = []

    def shrink(tokens: int, ids: Ids, block_tokens: int) -> tuple[int, Ids]:
        blocks = math.floor(len(ids) * exact)
        # An id stands for all that comes before it too: a block's is that of the last block whose text went into it.
        ends.extend(math.ceil((block + 1) / exact) - 1 for block in range(len(ends), blocks))
        kept_tokens = max(min(tokens, block_tokens), math.ceil(tokens * exact))
        return kept_tokens, tuple([ids[end] for end in ends[:blocks]])

    return shrink
