"""Whom one request may be served by, and what they hold of its prompts.

The rule of this module: it only reads. A pool of at most `Policy.max_candidates` workers is looked at as a whole; of a
larger one so many are, and nothing here takes longer for those that are not. A gateway with a part of its own looks at
its part of any pool.
"""

from collections import Counter
from collections.abc import Sequence

from gateway.core.candidates import candidates
from gateway.core.choosing import Ask, Surroundings
from gateway.core.conversation.rules import Pinning
from gateway.core.conversation.turn import Turn
from gateway.core.hashing import hash64, mix64, rendezvous
from gateway.core.pools import Routable
from gateway.core.prefix import ALL, Reach
from gateway.core.types import Role, WorkerId


class Look:
    """The workers that one request may be served by.

    Attributes:
        decode: workers that may serve it to its end; whoever gets the list only reads it.
        hits: leading prompt tokens that each of them is thought to hold; those with none are left out.
    """

    __slots__ = ("_around", "_ask", "_home", "_knows_all", "_prefill_pool", "_reaches", "decode", "hits")

    def __init__(self, around: Surroundings, ask: Ask) -> None:
        self._around = around
        self._ask = ask
        self._home: WorkerId | None = None
        facts, pools, reach = ask.facts, around.pools, around.prefix.reach
        pool = pools.all_routable(facts.model, Role.DECODE)
        self._prefill_pool = pools.all_routable(facts.model, Role.PREFILL)
        self._reaches: list[Reach] = [reach(chain) for chain in facts.block_chains]
        self.hits: dict[WorkerId, int] = {}
        is_large = around.is_large(pool)
        self._knows_all = not is_large and not around.is_large(self._prefill_pool)
        if self._knows_all:
            self._learn(ALL)
        if ask.kept_on is not None and ask.kept_on in pool.among:
            # A response is history that one worker alone has: while that one takes requests there is no other.
            self.decode = [ask.kept_on]
            self._see(self.decode)
        elif is_large:
            self.decode = self._candidates(pool, self._homes(pool), ask.exclude, mix64(ask.chance))
        else:
            self.decode = pools.routable(facts.model, Role.DECODE, exclude=ask.exclude) if ask.exclude else pool.workers
            self._see(self.decode)
        if around.policy.replicas > 1 and ask.turn is not None:
            self._presume(ask.turn)

    def prefill(self, *, but: WorkerId | None = None) -> list[WorkerId]:
        """Workers that may prefill it, without one of them; what they hold is in `hits` from then on."""
        around, facts, pool = self._around, self._ask.facts, self._prefill_pool
        exclude = self._ask.exclude if but is None else self._ask.exclude | {but}
        if around.is_large(pool) and facts.prefill_from is None:
            return self._candidates(pool, (), exclude, mix64(mix64(self._ask.chance)))
        found = pool.workers
        if exclude or facts.prefill_from is not None:
            found = around.pools.routable(facts.model, Role.PREFILL, exclude=exclude, offered=facts.prefill_from)
        self._see(found)
        return found

    def pin(self, pinning: Pinning) -> WorkerId | None:
        """The decode worker that the conversation is held by; None where none is, or it takes no requests.

        By hash, a conversation pins to its first choice among the workers that take requests now, so it moves while
        that one is ejected, and then back to where its cache is: no replica needs to remember a conversation for all
        to agree.
        """
        if pinning is Pinning.LOAD:
            known = None if self._ask.turn is None else self._ask.turn.known
            return known.worker_id if known and not known.is_cold and known.worker_id in self.decode else None
        name = self._name()
        if name is None:
            return None
        return rendezvous(name, self.decode) if self._home is None else self._home

    def _name(self) -> str | None:
        """By what the client calls the conversation, wherever it says so."""
        facts = self._ask.facts.conversation
        if self._ask.turn is None or facts is None or facts.label is None:
            return None
        return facts.label.partition("=")[2]

    def _homes(self, pool: Routable) -> Sequence[WorkerId]:
        """Where the conversation lives, or where its name says that it does."""
        turn, exclude = self._ask.turn, self._ask.exclude
        if turn is None:
            return ()
        if turn.is_kept:
            # A cold one too: its KV may have outlived that it was given up.
            return [turn.known.worker_id] if turn.known and turn.known.worker_id in pool.among else ()
        if (name := self._name()) is not None:
            self._home = pool.members.ring.first(hash64(name), pool.among - exclude if exclude else pool.among)
        return () if self._home is None else [self._home]

    def _candidates(
        self, pool: Routable, homes: Sequence[WorkerId], exclude: frozenset[WorkerId], draw: int
    ) -> list[WorkerId]:
        prefix, bounds, chains = self._around.prefix, self._around.bounds, self._ask.facts.block_chains
        assert bounds is not None
        best: Sequence[WorkerId] = ()
        if self._reaches and self._reaches[0]:
            if pool.mask is None:
                pool.mask = prefix.mask_of(pool.workers)
            best = prefix.best(self._reaches[0], pool.mask, bounds.best, draw)
        chain = chains[0] if chains else ()
        policy = self._around.policy
        own = () if policy.replica is None else pool.own(policy.replica, policy.replicas)
        found = candidates(
            pool,
            bounds,
            homes=homes,
            best=best,
            own=own,
            chain=chain,
            exclude=exclude,
            draw=draw,
            overflows=self._around.fleet.least_backlog_tokens(own) > policy.overflow_tokens,
        )
        self._see(found)
        return found

    def _presume(self, turn: Turn) -> None:
        """Another replica may have sent the turn before this one: its home holds what that was asked with."""
        said = self._ask.facts.conversation
        if said is None or not said.history_blocks or not self.decode:
            return
        home = self.pin(Pinning.LOAD if turn.is_kept else Pinning.HASH)
        if home is not None:
            self.hits[home] = max(self.hits.get(home, 0), self._ask.estimate.hit_tokens(said.history_blocks))

    def _see(self, workers: Sequence[WorkerId]) -> None:
        """Look up what these hold, where not all is known."""
        if not self._knows_all and any(self._reaches):
            self._learn(self._around.prefix.mask_of(workers))

    def _learn(self, mask: int) -> None:
        """Look up what the workers of a mask hold."""
        prefix, hits, tokens_of = self._around.prefix, self.hits, self._ask.estimate.hit_tokens
        if len(self._reaches) == 1:
            for bits, depth in self._reaches[0]:
                if held := bits & mask:
                    hits.update(dict.fromkeys(prefix.workers(held), tokens_of(depth)))
            return
        blocks: Counter[WorkerId] = Counter()
        for reach in self._reaches:
            blocks.update(prefix.held(reach, mask))
        hits.update((worker_id, tokens_of(count)) for worker_id, count in blocks.items())
