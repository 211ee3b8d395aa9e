"""The index against a model that does the same thing slowly, and the bounds on its memory."""

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gateway.core.hashing import hash64, mix64
from gateway.core.prefix import PrefixIndex
from gateway.core.types import WorkerId

A, B = WorkerId("a"), WorkerId("b")
WORKERS = [WorkerId(name) for name in "abcd"]


def chained(*texts: str, salt: str = "") -> tuple[int, ...]:
    """Block hashes as the wire layer makes them: each stands for all text before it too."""
    seed = hash64(salt)
    return tuple(seed := mix64(seed ^ hash64(text)) for text in texts)


# Chains over few texts, so that they share leading blocks often; up to eight blocks long.
chains = st.lists(st.sampled_from("xy"), max_size=8).map(lambda texts: chained(*texts))


def index(*bounds: int) -> PrefixIndex:
    """An index of workers a, b, c ... with these bounds."""
    made = PrefixIndex()
    for worker_id, bound in zip(WORKERS, bounds, strict=False):
        made.add_worker(worker_id, bound)
    return made


def entries(of: PrefixIndex) -> int:
    """Everything that the index keeps in memory, whatever the dict."""
    return len(of._masks) + len(of) + len(of._holdings) + len(of._free_bits)


class IndexMachine(RuleBasedStateMachine):
    """Stores, bounds and churn of four workers; the model keeps one recency list per worker."""

    def __init__(self) -> None:
        super().__init__()
        self.index = PrefixIndex()
        self.held: dict[WorkerId, list[int]] = {}
        self.bounds: dict[WorkerId, int] = {}

    @rule(worker_id=st.sampled_from(WORKERS), bound=st.integers(1, 10))
    def add(self, worker_id: WorkerId, bound: int) -> None:
        self.index.add_worker(worker_id, bound)
        self.bounds[worker_id] = bound
        self.held[worker_id] = self.held.get(worker_id, [])[-bound:]

    @rule(worker_id=st.sampled_from(WORKERS))
    def remove(self, worker_id: WorkerId) -> None:
        self.index.remove_worker(worker_id)
        self.held.pop(worker_id, None)

    @rule(worker_id=st.sampled_from(WORKERS), chain=chains)
    def store(self, worker_id: WorkerId, chain: tuple[int, ...]) -> None:
        self.index.store(worker_id, chain)
        if worker_id in self.held:
            bound = self.bounds[worker_id]
            kept = chain[:bound]
            older = [block for block in self.held[worker_id] if block not in kept]
            self.held[worker_id] = (older + list(reversed(kept)))[-bound:]

    @rule(chain=chains)
    def look_up(self, chain: tuple[int, ...]) -> None:
        expected = {}
        for worker_id, held in self.held.items():
            depth = next((i for i, block in enumerate(chain) if block not in held), len(chain))
            if depth:
                expected[worker_id] = depth
        assert self.index.hit_blocks(chain) == expected

    @invariant()
    def no_worker_holds_more_than_its_bound(self) -> None:
        assert len(self.index) == sum(map(len, self.held.values()))
        assert all(len(held) <= self.bounds[worker_id] for worker_id, held in self.held.items())

    @invariant()
    def no_block_is_kept_that_nobody_holds(self) -> None:
        assert set(self.index._masks) == {block for held in self.held.values() for block in held}


TestIndexEqualsItsModel = IndexMachine.TestCase
TestIndexEqualsItsModel.settings = settings(max_examples=40, stateful_step_count=30)


def test_each_worker_hits_as_deep_as_it_holds() -> None:
    of = index(100, 100, 100)
    of.store(A, chained("x", "y", "z"))
    of.store(B, chained("x", "y", "other"))
    assert of.hit_blocks(chained("x", "y", "z", "more")) == {A: 3, B: 2}


def test_an_empty_chain_hits_nowhere() -> None:
    of = index(100)
    of.store(A, chained("x"))
    assert of.hit_blocks(()) == {}


def test_another_salt_or_model_never_matches() -> None:
    of = index(100)
    of.store(A, chained("x", "y", salt="tenant 1"))
    assert of.hit_blocks(chained("x", "y", salt="tenant 2")) == {}
    assert of.hit_blocks(chained("x", "y")) == {}


def test_the_same_text_after_another_beginning_does_not_match() -> None:
    of = index(100)
    of.store(A, chained("system", "question"))
    assert of.hit_blocks(chained("other", "question")) == {}


def test_a_chain_longer_than_the_bound_keeps_its_head() -> None:
    of = index(3)
    chain = chained(*"abcdefgh")
    of.store(A, chain)
    assert of.hit_blocks(chain) == {A: 3}
    assert len(of) == 3


def test_the_oldest_tail_goes_first() -> None:
    of = index(4)
    old, new = chained("x", "y", "z"), chained("1", "2")
    of.store(A, old)
    of.store(A, new)
    assert of.hit_blocks(old) == {A: 2}
    assert of.hit_blocks(new) == {A: 2}


def test_a_shared_head_outlives_the_tails_after_it() -> None:
    of = index(6)
    for turn in range(20):
        of.store(A, chained("system", "tools", f"question {turn}", "more"))
        assert of.hit_blocks(chained("system", "tools")) == {A: 2}


@given(st.lists(chains, max_size=12), st.integers(1, 10))
def test_what_is_held_never_has_a_gap(stored: list[tuple[int, ...]], bound: int) -> None:
    of = index(bound)
    for chain in stored:
        of.store(A, chain)
    held = of._holdings[A].blocks
    for chain in stored:
        gone = [block not in held for block in chain]
        assert gone == sorted(gone)


def test_a_smaller_bound_drops_at_once() -> None:
    of = index(8)
    of.store(A, chained(*"abcdefgh"))
    of.add_worker(A, 2)
    assert of.hit_blocks(chained(*"abcdefgh")) == {A: 2}


def test_a_worker_that_left_is_forgotten_and_the_others_are_not() -> None:
    of = index(100, 100)
    of.store(A, chained("x", "y"))
    of.store(B, chained("x"))
    of.remove_worker(A)
    assert of.hit_blocks(chained("x", "y")) == {B: 1}


def test_a_new_worker_inherits_nothing_from_the_one_whose_place_it_takes() -> None:
    of = index(100, 100)
    of.store(A, chained("x", "y"))
    of.remove_worker(A)
    of.add_worker(WorkerId("new"), 100)
    assert of.hit_blocks(chained("x", "y")) == {}
    of.store(WorkerId("new"), chained("x"))
    of.store(B, chained("x", "y"))
    assert of.hit_blocks(chained("x", "y")) == {WorkerId("new"): 1, B: 2}


def test_an_unknown_worker_is_ignored() -> None:
    of = index(100)
    of.store(B, chained("x"))
    of.remove_worker(B)
    assert of.hit_blocks(chained("x")) == {}
    assert entries(of) == 1


def test_memory_stays_flat_over_many_unique_prompts() -> None:
    of = index(64, 64)
    for turn in range(100):
        of.store(WORKERS[turn % 2], chained("system", f"question {turn}", "tail"))
    full = entries(of)
    for turn in range(100, 3_000):
        of.store(WORKERS[turn % 2], chained("system", f"question {turn}", "tail"))
        assert len(of) <= 128
    assert entries(of) <= full


def test_memory_stays_flat_over_worker_churn() -> None:
    of = PrefixIndex()
    for generation in range(500):
        of.add_worker(WorkerId(f"w{generation}"), 16)
        of.store(WorkerId(f"w{generation}"), chained("system", f"question {generation}"))
        if generation >= 4:
            of.remove_worker(WorkerId(f"w{generation - 4}"))
    # Four workers with two blocks each, of which they share one; bits are reused.
    assert len(of) == 8
    assert len(of._masks) == 5
    assert max(holding.bit for holding in of._holdings.values()) < 2**5
