"""The circle: even, and moved by nobody but who leaves."""

from collections import Counter

import pytest

from gateway.core.hashing import hash64
from gateway.core.ring import LEAST_PART, Ring
from gateway.core.types import WorkerId

WORKERS = [WorkerId(f"w{number}") for number in range(200)]
KEYS = [hash64(f"key {number}") for number in range(4000)]


def firsts(members: list[WorkerId], among: frozenset[WorkerId] | None = None) -> list[WorkerId | None]:
    ring = Ring(members)
    return [ring.first(key, among or frozenset(members)) for key in KEYS]


def test_keys_are_spread_about_evenly() -> None:
    counts = Counter(firsts(WORKERS))
    # 20 each on average.
    assert len(counts) > 190
    assert max(counts.values()) <= 40


def test_a_worker_that_leaves_moves_only_its_own_keys() -> None:
    before, after = firsts(WORKERS), firsts(WORKERS[1:])
    assert all(new == old for old, new in zip(before, after, strict=True) if old != WORKERS[0])
    assert WORKERS[0] not in after


def test_one_that_takes_no_requests_is_passed_over_as_if_it_had_left() -> None:
    assert firsts(WORKERS, frozenset(WORKERS[1:])) == firsts(WORKERS[1:])


def test_nobody_is_first_among_nobody() -> None:
    assert Ring([]).first(1, frozenset()) is None
    assert Ring(WORKERS).first(1, frozenset()) is None
    assert Ring(WORKERS).at(1, frozenset()) is None


def test_the_next_worker_after_a_key_is_one_of_those_asked_about() -> None:
    ring, few = Ring(WORKERS), frozenset(WORKERS[:3])
    assert {ring.at(key, few) for key in KEYS} == few


@pytest.mark.parametrize("parts", [1, 3, 10, 50])
def test_parts_cover_every_worker_once(parts: int) -> None:
    ring = Ring(WORKERS)
    found = [worker_id for number in range(parts) for worker_id in ring.part(number, parts)]
    assert sorted(found) == sorted(WORKERS)


def test_a_part_has_a_choice_even_where_gateways_are_many() -> None:
    ring = Ring(WORKERS)
    sizes = {len(set(ring.part(number, 1000))) for number in range(1000)}
    assert sizes == {LEAST_PART}
    assert {worker_id for number in range(1000) for worker_id in ring.part(number, 1000)} == set(WORKERS)


def test_a_number_beyond_the_last_part_begins_anew() -> None:
    assert Ring(WORKERS).part(7, 5) == Ring(WORKERS).part(2, 5)
