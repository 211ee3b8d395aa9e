"""The bench of random session ids, small: what it counts, and what it would miss."""

from typing import Any

import pytest

from loadtest import bench_conversations
from loadtest.bench_conversations import MODES, Mark, Mode, routed_marks, traced_marks, unbounded

MIB = 2**20


def marks(*memory_bytes: int, known: int = 100_000) -> list[Mark]:
    seen = (50_000, 100_000, 200_000, 400_000)
    return [
        Mark(ids=ids, known=min(ids, known), memory_bytes=size) for ids, size in zip(seen, memory_bytes, strict=True)
    ]


@pytest.mark.parametrize("mode", MODES)
def test_every_id_is_routed_at_once(mode: str) -> None:
    routed = routed_marks(mode, ids=300, marks=(100, 300), lookups=500)
    assert routed.refused == 0
    assert routed.outcomes == {"Decision": 600}
    assert [mark.known for mark in routed.marks] == [100, 300]
    for median_us, tail_us in (routed.lookup_us, routed.first_us, routed.later_us):
        assert 0 < median_us <= tail_us


def test_a_conversation_takes_some_hundred_bytes() -> None:
    (mark,) = traced_marks("conserve", ids=500, marks=(500,))
    assert mark.known == 500
    assert 100 < mark.memory_bytes / mark.known < 5000


def test_the_book_forgets_beyond_its_capacity(monkeypatch: pytest.MonkeyPatch) -> None:
    rules: dict[str, Any] = {"small": bench_conversations.ConversationRules(capacity=50, mode=Mode.CONSERVE)}
    monkeypatch.setattr(bench_conversations, "MODES", rules)
    routed = routed_marks("small", ids=200, marks=(50, 200), lookups=10)
    assert [mark.known for mark in routed.marks] == [50, 50]
    assert routed.refused == 0


def test_memory_may_grow_until_the_book_is_full() -> None:
    assert unbounded(marks(10 * MIB, 20 * MIB, 28 * MIB, 28 * MIB)) == []


@pytest.mark.parametrize("found", [marks(10, 20, 30, 33), marks(1, 20, 20, 22, known=100_000)])
def test_what_grows_beyond_it_is_told(found: list[Mark]) -> None:
    (words,) = unbounded(found)
    assert "after 400,000 ids" in words


def test_a_book_beyond_its_capacity_is_told_too() -> None:
    assert len(unbounded(marks(1, 20, 20, 20, known=150_000))) == 2
