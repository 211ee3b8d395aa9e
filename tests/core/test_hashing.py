from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from gateway.core.hashing import hash64, mix64, rank_of, ranks_of, rendezvous

names = st.text(min_size=1, max_size=12)


def test_hashes_are_the_same_in_every_process() -> None:
    # Python's own hash() is salted per process; replicas must agree. The values are those of `b2sum -l 64` and of
    # splitmix64's published reference code.
    assert hash64("worker-0") == 0x194F5429ABAE9412
    assert mix64(0) == 0xE220A8397B1DCDAF


@given(st.integers(0, 2**64 - 1))
def test_mixing_stays_within_64_bits_and_loses_nothing(value: int) -> None:
    assert 0 <= mix64(value) < 2**64
    assert mix64(value) != mix64(value ^ 1)


@given(names, st.sets(names, min_size=2, max_size=8))
def test_a_lost_member_moves_only_its_own_keys(key: str, members: set[str]) -> None:
    home = rendezvous(key, members)
    assert home in members
    for gone in members - {home}:
        assert rendezvous(key, members - {gone}) == home


@given(names, st.lists(names, min_size=1, max_size=8, unique=True))
def test_the_order_of_members_does_not_matter(key: str, members: list[str]) -> None:
    assert rendezvous(key, members) == rendezvous(key, members[::-1])


def test_without_members_there_is_no_home() -> None:
    assert rendezvous("key", ()) is None


def test_keys_spread_evenly() -> None:
    members = [f"worker-{i}" for i in range(8)]
    homes = Counter(rendezvous(f"session-{i}", members) for i in range(8_000))
    # 1000 each; the deviation of a fair spread is about 30.
    assert len(homes) == 8
    assert max(abs(count - 1_000) for count in homes.values()) < 150


def test_the_keys_of_a_lost_member_spread_over_all_others() -> None:
    members = [f"worker-{i}" for i in range(5)]
    moved = [key for key in (f"session-{i}" for i in range(5_000)) if rendezvous(key, members) == "worker-0"]
    homes = Counter(rendezvous(key, members[1:]) for key in moved)
    assert len(homes) == 4
    assert max(homes.values()) < 1.5 * min(homes.values())


@given(st.text(), st.lists(st.text(), max_size=20))
def test_many_ranks_at_once_are_the_ranks_one_by_one(key: str, members: list[str]) -> None:
    assert list(ranks_of(hash64(key), members)) == [rank_of(hash64(key), member) for member in members]
