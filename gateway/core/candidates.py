"""Which workers of a large pool one decision looks at.

The rule of this module: so many at most, however large the pool. First those that there is a reason for: the
conversation's home, those that hold most of the prompt, and the gateway's own part of the pool, or else those that the
prompt's beginning stands for, which are the same at every replica. Then a sample. Chance comes in as a number, so equal
decisions look at equal workers.
Source of the sample: Mitzenmacher, "The power of two choices in randomized load balancing", 2001.
"""

from collections.abc import Iterable, Iterator, Sequence
from math import gcd

from gateway.core.hashing import mix64
from gateway.core.pools import Routable
from gateway.core.record import record
from gateway.core.types import WorkerId

LEAST = 8
"""No decision looks at fewer, where there are as many."""
BEST_SHARE = 4
"""One in so many is there for what it holds of the prompt."""
OVERFLOW = 16
"""So many of the others' workers are looked at when one's own have too much to do."""
KEYS_SHARE = 8
"""One in so many is there for the prompt's beginning."""


@record
class Bounds:
    """How many are looked at."""

    most: int
    sample: int | None = None
    """At most so many of them without a reason; None: as many as there is room for, or none beside workers of one's
    own."""

    @property
    def best(self) -> int:
        """At most so many for what they hold."""
        return self.most // BEST_SHARE


def candidates(
    pool: Routable,
    bounds: Bounds,
    *,
    homes: Iterable[WorkerId],
    best: Iterable[WorkerId],
    own: Sequence[WorkerId],
    chain: Sequence[int],
    exclude: frozenset[WorkerId],
    draw: int,
    overflows: bool,
) -> list[WorkerId]:
    """At most `bounds.most` workers of a pool, none of them twice.

    Args:
        pool: those that take requests.
        bounds: how many.
        homes: those that hold its conversation.
        best: those that hold most of the prompt, at most `bounds.best` of them.
        own: those that this gateway has for its own.
        chain: the prompt's block hashes; without workers of one's own they say where all replicas look.
        exclude: none of these.
        draw: 64 bits of chance.
        overflows: its own have too much to do.
    """
    found = dict.fromkeys(homes)
    found.update(dict.fromkeys(best))
    if own:
        found.update(dict.fromkeys(sample(own, bounds.most - len(found), draw)))
    else:
        for key in beginnings(chain, bounds.most // KEYS_SHARE):
            after = pool.members.ring.at(key, pool.among)
            if after is not None:
                found[after] = None
    room = bounds.most - len(found)
    # What others send to their own workers is seen late: whoever looked idle there has been found by then.
    wanted = bounds.sample or (room if not own else OVERFLOW if overflows else 0)
    found.update(dict.fromkeys(sample(pool.workers, min(room, wanted), draw)))
    if not exclude:
        return list(found)
    left = [worker_id for worker_id in found if worker_id not in exclude]
    return left or [one for one in sample(pool.workers, bounds.most + len(exclude), draw) if one not in exclude]


def beginnings(chain: Sequence[int], most: int) -> Iterator[int]:
    """Hashes of a prompt's beginnings of 1, 2, 4, ... blocks, from the longest; prompts that share much share most."""
    for power in range(len(chain).bit_length() - 1, max(-1, len(chain).bit_length() - 1 - most), -1):
        yield chain[(1 << power) - 1]


def sample(workers: Sequence[WorkerId], count: int, draw: int) -> Sequence[WorkerId]:
    """So many different workers, or all where there are no more; each as likely as any other."""
    size = len(workers)
    if count >= size:
        return workers
    if count <= 0:
        return ()
    # In strides that meet every worker once: any two of them are together about as often as any other two.
    begin, stride = draw % size, 1 + mix64(draw) % (size - 1)
    while gcd(stride, size) > 1:
        stride = stride % (size - 1) + 1
    return [workers[place % size] for place in range(begin, begin + stride * count, stride)]
