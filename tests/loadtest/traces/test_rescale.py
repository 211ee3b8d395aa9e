from itertools import islice, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.traces.rescale import scaled, scaled_session
from loadtest.traces.sessions import Session, Turn, all_turns
from loadtest.traces.synthetic_sessions import MINISWE, session_trace
from loadtest.traces.types import TraceRequest
from loadtest.traces.workload import Workload

BLOCK = 64


def session(*prompts: tuple[int, tuple[int, ...]], agents: tuple[Session, ...] = ()) -> Session:
    turns = tuple(
        Turn(input_tokens=tokens, output_tokens=500, hash_ids=ids, think_s=2.0, agents=agents)
        for tokens, ids in prompts
    )
    return Session(id="s", start_s=3.0, turns=turns, block_tokens=BLOCK)


def shared(one: Turn, other: Turn) -> int:
    """The blocks with which both prompts begin."""
    return next((n for n, (a, b) in enumerate(zip(one.hash_ids, other.hash_ids, strict=False)) if a != b),
                min(len(one.hash_ids), len(other.hash_ids)))  # fmt: skip


def test_prompts_shrink_and_nothing_else_does() -> None:
    ids = tuple(range(100))
    found = scaled_session(session((6_400, ids), (6_464, (*ids, 100))), 0.1)
    assert [turn.input_tokens for turn in found.turns] == [640, 647]
    assert [len(turn.hash_ids) for turn in found.turns] == [10, 10]
    assert found.turns[0].hash_ids == (9, 19, 29, 39, 49, 59, 69, 79, 89, 99)
    assert {(turn.output_tokens, turn.think_s) for turn in found.turns} == {(500, 2.0)}
    assert (found.id, found.start_s, found.block_tokens) == ("s", 3.0, BLOCK)


@pytest.mark.parametrize(("factor", "blocks"), [(0.1, 3), (1 / 3, 10), (2 / 3, 20), (0.07, 2), (1e-9, 0)])
def test_a_factor_is_the_fraction_that_was_meant(factor: float, blocks: int) -> None:
    (turn,) = scaled_session(session((1_920, tuple(range(30)))), factor).turns
    assert len(turn.hash_ids) == blocks


def test_prompts_that_part_part_at_the_same_share() -> None:
    first, second = tuple(range(100)), (*range(55), *range(1_000, 1_045))
    one, other = scaled_session(session((6_400, first), (6_400, second)), 0.2).turns
    assert shared(one, other) == 11
    assert len(set(one.hash_ids) & set(other.hash_ids)) == 11


def test_a_prompt_keeps_a_block_or_all_that_it_has() -> None:
    found = scaled_session(session((320, tuple(range(5))), (40, ())), 0.1)
    assert [(turn.input_tokens, turn.hash_ids) for turn in found.turns] == [(64, ()), (40, ())]


def test_sub_agents_and_open_requests_shrink_too() -> None:
    agent = session((640, tuple(range(10))))
    one = TraceRequest(index=4, arrival_s=1.0, input_tokens=6_400, output_tokens=7, hash_ids=tuple(range(100)),
                       block_tokens=BLOCK)  # fmt: skip
    found = scaled(Workload(requests=(one,), sessions=(session((640, tuple(range(10))), agents=(agent,)),)), 0.5)
    assert [(turn.input_tokens, turn.hash_ids) for turn in all_turns(found.sessions[0])] == [
        (320, (1, 3, 5, 7, 9)), (320, (1, 3, 5, 7, 9))
    ]  # fmt: skip
    (request,) = found.requests
    assert (request.index, request.input_tokens, request.output_tokens) == (4, 3_200, 7)
    assert request.hash_ids == tuple(range(1, 100, 2))


def test_a_factor_of_one_changes_nothing() -> None:
    workload = Workload(sessions=tuple(islice(session_trace(MINISWE, seed=1), 2)))
    assert scaled(workload, 1.0) == workload


@pytest.mark.parametrize("factor", [0.0, -1.0, 1.01])
def test_contexts_do_not_grow(factor: float) -> None:
    with pytest.raises(ValueError, match="above 0 and at most 1"):
        scaled(Workload(), factor)


@given(
    added=st.lists(st.integers(0, 3_000), min_size=2, max_size=12),
    factor=st.floats(0.01, 1.0),
    is_cut=st.lists(st.booleans(), min_size=12, max_size=12),
)
def test_what_extended_a_prompt_still_does(added: list[int], factor: float, is_cut: list[bool]) -> None:
    fresh = iter(range(10**6))
    prompts: list[tuple[int, tuple[int, ...]]] = []
    tokens, ids = 1, ()
    for more, lost in zip(added, is_cut, strict=False):
        kept = ids[: len(ids) // 2] if lost else ids
        tokens += more
        ids = (*kept, *islice(fresh, tokens // BLOCK - len(kept)))
        prompts.append((tokens, ids))
    before = session(*prompts)
    after = scaled_session(before, factor)
    for old, new in zip(before.turns, after.turns, strict=True):
        assert min(old.input_tokens, BLOCK) <= new.input_tokens <= old.input_tokens
        assert len(new.hash_ids) * BLOCK <= new.input_tokens
        assert new.input_tokens - factor * old.input_tokens < 1.001 or new.input_tokens <= BLOCK
    for (old, longer), (new, extended) in zip(pairwise(before.turns), pairwise(after.turns), strict=True):
        assert -1 < shared(new, extended) - factor * shared(old, longer) < 1e-3  # rounded down
        if shared(old, longer) == len(old.hash_ids):
            assert extended.hash_ids[: len(new.hash_ids)] == new.hash_ids
            assert extended.input_tokens >= new.input_tokens
