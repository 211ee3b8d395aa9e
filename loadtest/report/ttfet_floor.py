"""The time to a conversation's first effective token that no router goes below: what is left where nobody waits.

The rule of this module: a session alone on one engine that keeps all that it has computed. Only its own work counts, in
the order in which it comes: what of a prompt no earlier prompt had, the answer at a batch of one, the pauses of tools,
and sub-agents, each alone. No KV is transferred, and nothing is computed that another session could have left in a
cache, unless it is said to be there already.
"""

from collections.abc import Collection

from gateway.core.engine_costs import EngineCosts
from loadtest.traces.sessions import Session, Turn, shows


def ttfet_floor_s(session: Session, costs: EngineCosts, *, warm_ids: Collection[int] = ()) -> float:
    """Seconds from the session's first request to the first token of its first answer that shows its user text.

    Args:
        session: of a user, not a sub-agent's.
        costs: of the engine; where engines differ, those of the fastest give the floor.
        warm_ids: block ids whose KV is cached before the session begins, such as those of a head that sessions share.
    """
    cached = set(warm_ids)
    floor_s = 0.0
    for number, turn in enumerate(session.turns):
        floor_s += _first_token_s(session, turn, costs, cached)
        if shows(session, number):
            return floor_s
        floor_s += _decode_s(turn, costs) + _called_s(turn, costs, cached) + turn.think_s
    raise ValueError(f"session {session.id} has no turns")


def _first_token_s(session: Session, turn: Turn, costs: EngineCosts, cached: set[int]) -> float:
    """From a request's arrival to its first token; its prompt is cached from then on."""
    size, tokens = session.block_tokens, turn.input_tokens
    known = next((n for n, block in enumerate(turn.hash_ids) if block not in cached), len(turn.hash_ids))
    # Only full blocks are found again, and the last token is always computed: it makes the answer's first.
    kept_tokens = min(known, (tokens - 1) // size) * size
    cached.update(turn.hash_ids)
    return costs.arrival_s(tokens) + costs.prefill_s(tokens - kept_tokens, kept_tokens)


def _decode_s(turn: Turn, costs: EngineCosts) -> float:
    """From an answer's first token to its last."""
    return costs.table.decode_stretch(1, turn.input_tokens + 1).seconds(turn.output_tokens - 1)


def _called_s(turn: Turn, costs: EngineCosts, cached: set[int]) -> float:
    """From an answer to the report of the last of the sub-agents that it calls, which share what was cached then."""
    longest_s, theirs = 0.0, set[int]()
    for agent in turn.agents:
        own = cached.copy()
        longest_s = max(longest_s, agent.start_s + _whole_s(agent, costs, own))
        theirs |= own
    cached |= theirs
    return longest_s


def _whole_s(session: Session, costs: EngineCosts, cached: set[int]) -> float:
    """From a sub-agent's first request to its report."""
    return sum(
        _first_token_s(session, turn, costs, cached)
        + _decode_s(turn, costs)
        + _called_s(turn, costs, cached)
        + turn.think_s
        for turn in session.turns
    )
