"""Rendezvous (highest random weight) hashing.

The rule of this module: a key's order of workers depends on nothing but the key and each worker's own id, so that
a worker that leaves moves only the keys that were on it.
Source: Thaler and Ravishankar, "Using name-based mappings to increase hit rates", 1998.
"""

from collections.abc import Iterable, Sequence
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
    """A long integer as so many lanes of 128 bits, each with 64 bits in its lower half."""

    ones: int
    """1 in every lane: a factor that puts 64 bits into all of them."""
    golden: int
    """What `mix64` adds first, in every lane."""
    lower: int
    """The lower half of every lane."""
    layout: Struct


@lru_cache(maxsize=1024)
def _lanes(count: int) -> _Lanes:
    layout = Struct("<" + "Q8x" * count)
    ones = int.from_bytes(layout.pack(*[1] * count), "little")
    return _Lanes(ones, 0x9E3779B97F4A7C15 * ones, _MASK * ones, layout)


@lru_cache(maxsize=16_384)
def _lane_of(member: str) -> bytes:
    return hash64(member).to_bytes(16, "little")


def ranks_of(key_hash: int, members: Iterable[str]) -> Sequence[int]:
    """`rank_of` for many members, for a decision may rank a whole pool.

    All of them stand in one long integer, each with a lane of its own, and each operation of `mix64` is done on all
    lanes at once: a product of two halves fits into its lane, and what a shift brings in from the next one is in the
    upper half.
    """
    hashes = b"".join(map(_lane_of, members))
    lanes = _lanes(len(hashes) // 16)
    return _mixed(int.from_bytes(hashes, "little") ^ key_hash * lanes.ones, lanes)


def mix64_each(values: Sequence[int]) -> Sequence[int]:
    """`mix64` of many integers of 64 bits."""
    lanes = _lanes(len(values))
    return _mixed(int.from_bytes(lanes.layout.pack(*values), "little"), lanes)


def _mixed(value: int, lanes: _Lanes) -> Sequence[int]:
    _, golden, lower, layout = lanes
    value = (value + golden) & lower
    value = ((value ^ (value >> 30 & lower)) * 0xBF58476D1CE4E5B9) & lower
    value = ((value ^ (value >> 27 & lower)) * 0x94D049BB133111EB) & lower
    value ^= value >> 31 & lower
    return layout.unpack(value.to_bytes(layout.size, "little"))


def rendezvous(key: str, members: Iterable[_T]) -> _T | None:
    """The member with the highest weight for `key`, or None where there are none."""
    known = members if isinstance(members, list) else list(members)
    ranks = ranks_of(hash64(key), known)
    return known[ranks.index(max(ranks))] if known else None
