"""Rendezvous (highest random weight) hashing.

The rule of this module: a key's order of workers depends on nothing but the key and each worker's own id, so that
a worker that leaves moves only the keys that were on it.
Source: Thaler and Ravishankar, "Using name-based mappings to increase hit rates", 1998.
"""

from collections.abc import Iterable
from functools import lru_cache
from hashlib import blake2b
from typing import TypeVar

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


# Workers are few and asked for on every decision; keys are many and asked for once.
_member_hash = lru_cache(maxsize=4096)(hash64)


def rank_of(key_hash: int, member: str) -> int:
    """The random weight of `member` for a hashed key; always the same for the same two."""
    return mix64(key_hash ^ _member_hash(member))


def ranks_of(key_hash: int, members: Iterable[str]) -> list[int]:
    """`rank_of` for many members at once: written out, for a decision may rank a whole pool."""
    ranks = []
    for member in members:
        value = ((key_hash ^ _member_hash(member)) + 0x9E3779B97F4A7C15) & _MASK
        value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
        ranks.append(value ^ (value >> 31))
    return ranks


def rendezvous(key: str, members: Iterable[_T]) -> _T | None:
    """The member with the highest weight for `key`, or None where there are none."""
    known = list(members)
    ranks = ranks_of(hash64(key), known)
    return known[ranks.index(max(ranks))] if known else None
