"""Whom a decision looks at in a large pool."""

from collections import Counter
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.candidates import Bounds, beginnings, candidates, sample
from gateway.core.conversation.facts import ConversationFacts
from gateway.core.conversation.rules import ConversationRules, Mode, Pinning
from gateway.core.events import Dispatched, WorkerUp
from gateway.core.path.base import PolicyError
from gateway.core.path.rules import AlwaysLocal, AlwaysRemote
from gateway.core.policy import Policy
from gateway.core.pools import Members, Routable
from gateway.core.router import Router
from gateway.core.types import Decision, RequestFacts, Role, WorkerId
from tests.core.factories import facts, routed, worker

FLEET = [worker(f"d{number}") for number in range(100)] + [worker(f"p{number}", Role.PREFILL) for number in range(100)]
CHAIN = tuple(range(1000, 1016))
WIDE = Policy(path=AlwaysLocal(), max_candidates=None)
NARROW = Policy(path=AlwaysLocal(), max_candidates=8)


def router(policy: Policy, fleet: list[Any] = FLEET, *, instance: str = "gw") -> Router:
    made = Router(policy, rng=Random(0), instance=instance)
    for spec in fleet:
        made.observe(WorkerUp(at_s=0.0, spec=spec))
    return made


def submit(to: Router, about: RequestFacts, now_s: float = 0.0, **how: Any) -> Decision:
    decision = routed(to.submit(about, now_s, **how))
    to.observe(Dispatched(at_s=now_s, decision_id=decision.decision_id))
    return decision


def turn(name: str, label: str | None = "x-session-id=c1", *, tokens: int = 1024, **said: Any) -> RequestFacts:
    about = ConversationFacts(label=label, turns=(1, 2), **said)
    return facts(name, tokens=tokens, chain=CHAIN, conversation=about)


class TestSample:
    @given(size=st.integers(1, 300), count=st.integers(0, 300), draw=st.integers(0, 2**64 - 1))
    def test_all_are_different_and_as_many_as_asked_for(self, size: int, count: int, draw: int) -> None:
        workers = [WorkerId(str(number)) for number in range(size)]
        found = list(sample(workers, count, draw))
        assert len(found) == len(set(found)) == min(size, count)
        assert set(found) <= set(workers)

    def test_everybody_is_drawn_as_often(self) -> None:
        chance, workers = Random(1), [WorkerId(str(number)) for number in range(60)]
        counts = Counter(one for _ in range(3000) for one in sample(workers, 4, chance.getrandbits(64)))
        assert 140 <= min(counts.values()) <= max(counts.values()) <= 260


def test_beginnings_are_those_of_powers_of_two_from_the_longest() -> None:
    assert list(beginnings(CHAIN[:13], 10)) == [CHAIN[7], CHAIN[3], CHAIN[1], CHAIN[0]]
    assert list(beginnings(CHAIN[:13], 2)) == [CHAIN[7], CHAIN[3]]
    assert list(beginnings((), 3)) == []


class TestCandidates:
    WORKERS = tuple(WorkerId(f"d{number}") for number in range(100))

    def found(self, **changes: Any) -> list[WorkerId]:
        asked: dict[str, Any] = {"homes": (), "best": (), "own": (), "chain": CHAIN, "exclude": frozenset()}
        asked |= {"draw": 12345, "overflows": False}
        pool = Routable(Members(list(self.WORKERS)), list(self.WORKERS))
        return candidates(pool, changes.pop("bounds", Bounds(most=16)), **{**asked, **changes})

    @given(draw=st.integers(0, 2**64 - 1), most=st.integers(8, 64))
    def test_home_and_holders_are_always_among_them(self, draw: int, most: int) -> None:
        best = self.WORKERS[50 : 50 + most // 4]
        found = self.found(bounds=Bounds(most=most), homes=[self.WORKERS[9]], best=best, draw=draw)
        assert {self.WORKERS[9], *best} <= set(found)
        assert len(found) == len(set(found)) <= most

    def test_all_replicas_look_where_the_beginning_of_a_prompt_says(self) -> None:
        looked = [set(self.found(draw=draw)) for draw in range(50)]
        assert len(set.intersection(*looked)) == 2
        assert len(set.union(*looked)) == 100

    def test_so_few_are_looked_at_for_their_load_alone(self) -> None:
        assert len(self.found(bounds=Bounds(most=16, sample=3), chain=())) == 3

    def test_a_gateway_with_a_part_of_its_own_looks_at_others_when_that_is_full(self) -> None:
        own = self.WORKERS[:5]
        assert self.found(own=own) == list(own)
        full = self.found(bounds=Bounds(most=64), own=own, overflows=True)
        assert set(own) < set(full)
        assert len(full) > 15

    def test_of_a_part_that_is_too_large_there_is_a_sample(self) -> None:
        looked = [self.found(own=self.WORKERS[:50], draw=draw) for draw in range(200)]
        assert {len(each) for each in looked} == {16}
        assert set().union(*looked) == set(self.WORKERS[:50])

    def test_whoever_failed_is_left_out_and_somebody_is_left(self) -> None:
        assert self.WORKERS[0] not in self.found(exclude=frozenset(self.WORKERS[:1]))
        own = self.WORKERS[:2]
        others = self.found(own=own, exclude=frozenset(own))
        assert others
        assert not set(others) & set(own)


class TestDecisions:
    @given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 16)), max_size=12), st.sampled_from([100, 200, 10_000]))
    def test_a_fleet_no_larger_than_the_bound_is_looked_at_as_a_whole(
        self, asked: list[tuple[int, int]], bound: int
    ) -> None:
        fleet = FLEET[:12] + FLEET[100:112]
        bounded, whole = (
            router(Policy(path=AlwaysRemote(), max_candidates=most), fleet) for most in (max(12, bound), None)
        )
        for number, (head, blocks) in enumerate(asked):
            about = facts(f"r{number}", tokens=2048, chain=(head, *CHAIN[:blocks]))
            one, other = (submit(each, about) for each in (bounded, whole))
            assert msgspec.json.encode(one) == msgspec.json.encode(other)

    def test_the_worker_with_the_longest_prefix_is_found_in_any_fleet(self) -> None:
        of = router(NARROW)
        first = submit(of, facts("first", tokens=1024, chain=CHAIN))
        for number in range(20):
            again = submit(of, facts(f"r{number}", tokens=1024, chain=CHAIN))
            assert first.decode_worker in {one.worker_id for one in again.decode_candidates} | {again.decode_worker}
            assert again.decode_hit_tokens > 0

    @pytest.mark.parametrize("label", [f"x-session-id={number}" for number in range(5)])
    def test_a_conversation_is_at_home_at_every_replica(self, label: str) -> None:
        homes = {submit(router(NARROW, instance=f"gw-{number}"), turn("r", label)).decode_worker for number in range(6)}
        assert len(homes) == 1

    def test_homes_are_spread(self) -> None:
        of = router(NARROW)
        homes = {submit(of, turn(f"r{number}", f"x-session-id={number}")).decode_worker for number in range(200)}
        assert len(homes) > 60

    @pytest.mark.parametrize("mode", [Mode.AFFINITY, Mode.CONSERVE])
    def test_a_conversation_that_was_placed_by_load_is_found_again(self, mode: Mode) -> None:
        rules = ConversationRules(mode=mode, pinning=Pinning.LOAD)
        of = router(Policy(path=AlwaysLocal(), max_candidates=8, conversation=rules))
        first = submit(of, turn("first"))
        assert {submit(of, turn(f"r{number}")).decode_worker for number in range(20)} == {first.decode_worker}

    def test_replicas_look_at_different_workers_and_a_replay_at_the_same(self) -> None:
        asked = [facts(f"r{number}", tokens=64) for number in range(30)]
        routes = [
            [submit(router_, about, 0.5 * at).decode_worker for at, about in enumerate(asked)]
            for router_ in (router(NARROW, instance=name) for name in ("a", "a", "b"))
        ]
        assert routes[0] == routes[1] != routes[2]

    def test_a_preview_is_what_submit_answers_and_takes_nothing(self) -> None:
        of, other = router(NARROW), router(NARROW)
        for number in range(20):
            about = facts(f"r{number}", tokens=64)
            previewed = of.preview(about, float(number))
            assert msgspec.json.encode(previewed) == msgspec.json.encode(of.submit(about, float(number)))
            assert msgspec.json.encode(previewed) == msgspec.json.encode(other.submit(about, float(number)))

    def test_retries_find_workers_until_none_is_left(self) -> None:
        of, failed = router(NARROW), frozenset[WorkerId]()
        for attempt in range(1, 101):
            decision = submit(of, facts(f"r{attempt}", tokens=64), exclude=failed, attempt=attempt)
            assert decision.decode_worker not in failed
            failed |= {decision.decode_worker}


class TestParts:
    def test_a_gateway_uses_its_part_alone_while_that_has_time(self) -> None:
        used = []
        for replica in range(4):
            of = router(Policy(path=AlwaysRemote(), replicas=4, replica=replica))
            decisions = [submit(of, facts(f"r{number}", tokens=100)) for number in range(100)]
            used.append({one.decode_worker for one in decisions} | {one.prefill_worker for one in decisions})
        assert [len(each) for each in used] == [50, 50, 50, 50]
        assert len(set().union(*used)) == 200

    def test_beyond_its_bound_it_uses_others(self) -> None:
        of = router(Policy(path=AlwaysRemote(), replicas=20, replica=3, overflow_tokens=5000))
        decisions = [submit(of, facts(f"r{number}", tokens=1000)) for number in range(60)]
        assert len({one.prefill_worker for one in decisions}) > 5

    def test_what_stands_before_the_last_answer_is_taken_to_be_at_home(self) -> None:
        about = turn("r", history_blocks=12)
        told, untold = (submit(router(Policy(path=AlwaysLocal(), replicas=replicas)), about) for replicas in (2, 1))
        assert (told.decode_hit_tokens, untold.decode_hit_tokens) == (12 * 64, 0)
        assert told.decode_worker == untold.decode_worker

    def test_a_conversation_that_nobody_placed_is_presumed_nowhere(self) -> None:
        rules = ConversationRules(pinning=Pinning.LOAD)
        of = router(Policy(path=AlwaysLocal(), replicas=2, conversation=rules))
        assert submit(of, turn("r", history_blocks=12)).decode_hit_tokens == 0


@pytest.mark.parametrize(
    "wrong", [{"max_candidates": 7}, {"load_sample": 0}, {"replicas": 0}, {"replica": -1}, {"overflow_tokens": -1}]
)
def test_bounds_that_make_no_sense_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(PolicyError, match=next(iter(wrong))):
        Policy(**wrong)
