"""Replicas beside one router, in small fleets."""

from dataclasses import replace

import pytest
from typer import Typer
from typer.testing import CliRunner

from gateway.core.conversation.rules import Pinning
from gateway.core.policy import Policy
from gateway.core.types import WorkerSample
from loadtest.engine.presets import load_engine
from loadtest.fleet.pools import parse_pools
from loadtest.scale.__main__ import main
from loadtest.scale.decisions import decision_cost
from loadtest.scale.host import SharedScrape
from loadtest.scale.replicas import ReplicaPlan, Replicas
from loadtest.scale.run import Arm, Figures, Place, all_seeing, arms, chosen, difference, serve
from loadtest.scale.workload import ScaleMix, history_blocks, scale_workload
from loadtest.simulator.fleet import Member
from loadtest.simulator.flight import Flight
from loadtest.traces.types import TraceRequest

PLACE = Place(pools=parse_pools("10P10D"), rate_rps=12.0, requests=400)
PARTS = Arm(name="parts", plan=ReplicaPlan(count=5, has_parts=True))


def figures(arm: Arm, place: Place = PLACE, seed: int = 0) -> Figures:
    return serve(place, arm, place.workload(seed), seed=seed)


def steady(of: Figures) -> Figures:
    """Without the machine's times."""
    return replace(of, cpu_s=0.0, decision_p50_us=0.0)


class TestServing:
    def test_the_same_seed_gives_the_same_figures(self) -> None:
        assert steady(figures(PARTS)) == steady(figures(PARTS))
        assert steady(figures(PARTS)) != steady(figures(PARTS, seed=1))

    @pytest.mark.parametrize("arm", arms([5]), ids=lambda arm: arm.name)
    def test_every_arm_serves_all_requests(self, arm: Arm) -> None:
        found = figures(arm)
        assert (found.failed, found.requests > 250) == (0, True)
        assert 0.8 < found.attained_ratio <= 1.0
        assert 0.0 < found.ttft_p50_s <= found.ttft_p90_s
        assert 0.0 < found.tpot_p50_s <= found.tpot_p90_s

    def test_one_that_sees_everything_finds_more_in_caches_than_many_that_do_not(self) -> None:
        assert figures(all_seeing()).hit_ratio > figures(Arm(name="x", plan=ReplicaPlan(count=20))).hit_ratio

    def test_pins_that_are_shared_bring_turns_home(self) -> None:
        # By load, a replica that was told nothing takes every turn for a new conversation.
        mix = replace(PLACE, mix=ScaleMix(conversation_ratio=1.0, gap_scale=0.02), rate_rps=6.0)
        alone = Arm(name="alone", plan=ReplicaPlan(count=10), pinning=Pinning.LOAD)
        told = replace(alone, plan=ReplicaPlan(count=10, pins_after_s=0.05))
        late = replace(alone, plan=ReplicaPlan(count=10, pins_after_s=1e6))
        assert figures(told, mix).remote_ratio < figures(alone, mix).remote_ratio - 0.05
        assert steady(figures(late, mix)) == steady(figures(alone, mix))


class TestReplicas:
    def make(self, count: int, *, has_parts: bool = False) -> Replicas:
        spec, _ = load_engine(PLACE.engine)
        workers = [Member(name, role, spec).spec() for name, role in PLACE.pools.roles()]
        plan = ReplicaPlan(count=count, has_parts=has_parts)
        return Replicas(Policy(), workers, plan=plan, history={}, seed=0)

    def test_requests_are_dealt_out_in_turn_and_nobody_hears_of_others(self) -> None:
        of = self.make(3)
        for index in range(7):
            request = TraceRequest(index=index, arrival_s=0.0, input_tokens=100, output_tokens=10)
            of.arrived(Flight(request, 0.0), 0.0)
        assert [len(core.router.ledger) for core in of.cores] == [3, 2, 2]
        assert len(of.decision_ns) == 7

    def test_a_scrape_is_heard_by_one(self) -> None:
        of = self.make(2)
        of.hear(1, 0, WorkerSample(at_s=1.0, running=9), 2.0)
        states = [next(iter(core.router.fleet)) for core in of.cores]
        assert [state.sample is None for state in states] == [True, False]

    def test_parts_are_of_both_pools_and_each_worker_is_in_one(self) -> None:
        of = self.make(2, has_parts=True)
        parts = [of.own_places(replica) for replica in range(2)]
        assert sorted(place for part in parts for place in part) == list(range(20))
        assert [sum(place < 10 for place in part) for part in parts] == [5, 5]


class TestScrapes:
    def test_a_replica_hears_of_every_worker_once_in_so_many_rounds(self) -> None:
        heard: list[tuple[int, int, float, float]] = []

        class Listening(Replicas):
            def hear(self, replica: int, place: int, sample: WorkerSample, now_s: float) -> None:
                heard.append((replica, place, sample.at_s, now_s))
                super().hear(replica, place, sample, now_s)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr("loadtest.scale.run.Replicas", Listening)
            figures(Arm(name="x", plan=ReplicaPlan(count=2), scrape=SharedScrape(rounds=5, max_age_s=2.0)))
        ages = [now_s - at_s for _, _, at_s, now_s in heard]
        assert 0.0 <= min(ages) < 0.3
        assert 1.7 < max(ages) <= 2.0
        for replica in range(2):
            taken = [(at_s, place) for by, place, at_s, _ in heard if by == replica and at_s <= 5.0]
            assert sorted(place for _, place in taken) == list(range(20))
        first = {place for by, place, at_s, _ in heard if by == 0 and at_s == 1.0}
        assert first == {0, 5, 10, 15}


class TestWorkload:
    def test_it_is_as_long_and_as_fast_as_asked_for_and_follows_from_its_seed(self) -> None:
        one, again, other = (scale_workload(ScaleMix(), 1000, 20.0, seed=seed) for seed in (0, 0, 1))
        assert one == again != other
        requests = one.driver().requests
        assert len(requests) == 1000
        assert 45.0 < requests[-1].arrival_s < 80.0  # the last turns come late

    def test_conversations_have_names_and_single_requests_have_none(self) -> None:
        workload = scale_workload(ScaleMix(), 1000, 20.0, seed=0)
        assert {one.session for one in workload.requests} == {None}
        assert min(len(session.turns) for session in workload.sessions) > 1
        assert all(turn.think_s >= 1.0 for session in workload.sessions for turn in session.turns)

    def test_requests_of_a_tenant_begin_alike(self) -> None:
        mix = ScaleMix(conversation_ratio=0.0, tenants=5, head_blocks=3)
        heads = {one.hash_ids[:3] for one in scale_workload(mix, 300, 20.0, seed=0).requests}
        assert len(heads) == 5
        assert len({block for head in heads for block in head}) == 15

    def test_the_history_is_what_the_turn_before_sent_or_all_but_a_block_where_it_was_cut(self) -> None:
        def asked(index: int, ids: tuple[int, ...], session: str | None = "s") -> TraceRequest:
            tokens = 512 * len(ids)
            return TraceRequest(
                index=index, arrival_s=index, input_tokens=tokens, output_tokens=1, hash_ids=ids, session=session
            )

        found = history_blocks([asked(0, (1, 2)), asked(1, (1, 2, 3, 4)), asked(2, (1, 9, 8)), asked(3, (5,), None)])
        assert found == {1: 2, 2: 2}


def test_differences_are_paired_by_seed() -> None:
    base = figures(all_seeing())
    own = [replace(base, attained_ratio=ratio) for ratio in (0.9, 0.8)]
    other = [replace(base, attained_ratio=ratio) for ratio in (0.92, 0.82)]
    found = difference(own, other)
    assert found.points == pytest.approx(-2.0)
    assert found.half_width == pytest.approx(0.0, abs=1e-9)
    assert difference(own[:1], other[:1]).half_width is None


def test_a_decision_of_a_gateway_with_a_part_does_not_grow_with_the_fleet() -> None:
    policy = Policy(replicas=50, replica=0)
    small, large = (decision_cost(workers, policy, runs=300) for workers in (200, 800))
    # Without the bound it is about three times as much.
    assert large.p50_us < 2.0 * small.p50_us


def test_the_command_prints_every_arm(capsys: pytest.CaptureFixture[str]) -> None:
    app = Typer()
    app.command()(main)
    ran = CliRunner().invoke(
        app, ["--pools", "5P5D", "--replicas", "2", "--requests", "150", "--seeds", "1", "--no-decisions"]
    )
    assert ran.exit_code in (0, 1), ran.output
    assert all(arm.name in ran.output for arm in arms([2]))
    assert CliRunner().invoke(app, ["--pools", "none"]).exit_code == 2


def test_only_some_arms_are_served_beside_the_one_that_sees_everything() -> None:
    compared = arms([10, 100])
    names = [arm.name for arm in chosen(compared, "loads, no parts")]
    assert names == ["one, all-seeing", "100, loads shared", "100, no parts"]
    assert [arm.name for arm in chosen(compared, "loads shared")] == ["one, all-seeing", "100, loads shared"]
    assert chosen(compared, " ") == compared
    with pytest.raises(ValueError, match="'hundred' in its name; there are 10, own parts, "):
        chosen(compared, "hundred")
