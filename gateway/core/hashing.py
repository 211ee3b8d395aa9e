"""Rendezvous (highest random weight) hashing.

The rule of this module: a key's order of workers depends on nothing but the key and each worker's own id, so that
a worker that leaves moves only the keys that were on it.
Source: Thaler and Ravishankar, "Using name-based mappings to increase hit rates", 1998.
"""

from collections.abc import Iterable
from functools import lru_cache
from hashlib import blake2b
from struct import Struct
from typing import NamedTuple, TypeVar

_MASK = (1 << 64) - 1
_T = TypeVar("_T", bound=str)


def hash64(text: str) -> int:
    """A 64-bit hash of `text` that is the same in every process."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")


def mix64(value: int) -> int:
    """Spread a 64-bit integer over all its bits (the splitmix64 finaliser)."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def unmix64(value: int) -> int:
    """The integer that `mix64` spread."""
    value = _unshift(value, 31) * _UNMIX_SECOND & _MASK
    value = _unshift(value, 27) * _UNMIX_FIRST & _MASK
    return (_unshift(value, 30) - 0x9E3779B97F4A7C15) & _MASK


_UNMIX_FIRST, _UNMIX_SECOND = (pow(factor, -1, 1 << 64) for factor in (0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def _unshift(value: int, by: int) -> int:
    """The integer `x` for which `x ^ (x >> by)` is this one; `by` is more than a third of 64."""
    return value ^ (value >> by) ^ (value >> 2 * by)


# Workers are few and asked for on every decision; keys are many and asked for once.
_member_hash = lru_cache(maxsize=16_384)(hash64)


def rank_of(key_hash: int, member: str) -> int:
    """The random weight of `member` for a hashed key; always the same for the same two."""
    return mix64(key_hash ^ _member_hash(member))


class _Lanes(NamedTuple):
    """Members as one long integer: the hash of each in the lower half of a lane of its own, of 128 bits."""

    hashes: int
    ones: int
    """1 in every lane: a factor that puts 64 bits into all of them."""
    lower: int
    """The lower half of every lane."""
    layout: Struct


@lru_cache(maxsize=64)
def _lanes_of(members: tuple[str, ...]) -> _Lanes:
    ones, layout = _lanes_for(len(members))
    halves = [0] * (2 * len(members))
    halves[::2] = map(_member_hash, members)
    return _Lanes(int.from_bytes(layout.pack(*halves), "little"), ones, _MASK * ones, layout)


@lru_cache(maxsize=1024)
def _lanes_for(members: int) -> tuple[int, Struct]:
    layout = Struct(f"<{2 * members}Q")
    return int.from_bytes(layout.pack(*([1, 0] * members)), "little"), layout


def ranks_of(key_hash: int, members: Iterable[str]) -> list[int]:
    """`rank_of` for many members, for a decision may rank a whole pool.

    A pool stays the same for long, so it is laid out once, and each operation of `mix64` is done on all lanes at once:
    a product of two halves fits into its lane, and what a shift brings in from the next one is in the upper half.
    """
    hashes, ones, lower, layout = _lanes_of(tuple(members))
    value = ((hashes ^ key_hash * ones) + 0x9E3779B97F4A7C15 * ones) & lower
    value = ((value ^ (value >> 30 & lower)) * 0xBF58476D1CE4E5B9) & lower
    value = ((value ^ (value >> 27 & lower)) * 0x94D049BB133111EB) & lower
    value ^= value >> 31 & lower
    return list(layout.unpack(value.to_bytes(layout.size, "little"))[::2])


def rendezvous(key: str, members: Iterable[_T]) -> _T | None:
    """The member with the highest weight for `key`, or None where there are none."""
    known = list(members)
    ranks = ranks_of(hash64(key), known)
    return known[ranks.index(max(ranks))] if known else None
