"""The books of the router: reservations, prefix index, calibration, health and SLOs over a request's life."""

from collections.abc import Callable, Sequence
from itertools import chain, combinations
from random import Random
from typing import Any

import pytest

from gateway.core.events import (
    Dispatched,
    Event,
    FirstToken,
    Prefilled,
    PrefillLost,
    WorkerDown,
    WorkerProbed,
    WorkerUp,
)
from gateway.core.health import HealthState
from gateway.core.ledger import LedgerError, Tally
from gateway.core.path.base import PathQuestion
from gateway.core.path.rules import AlwaysLocal, AlwaysRemote
from gateway.core.policy import Policy
from gateway.core.router import Router
from gateway.core.types import Decision, OutcomeKind, Path, PathChoice, Reason, RequestFacts, Role, WorkerId
from tests.core.factories import MODEL, facts, finished, routed, router, scrape, worker

P0, D0, D1 = worker("p0", Role.PREFILL), worker("d0"), worker("d1")
PREFILL, DECODE = WorkerId("p0"), WorkerId("d0")
CHAIN = (11, 12, 13, 14)
IDLE = Tally()


def local_router(*more: Any) -> Router:
    return router(D0, *more, policy=Policy(path=AlwaysLocal()))


def remote_router(*more: Any) -> Router:
    return router(P0, D0, *more, policy=Policy(path=AlwaysRemote()))


def submit(to: Router, about: RequestFacts | None = None, now_s: float = 0.0) -> Decision:
    return routed(to.submit(about or facts(tokens=256, chain=CHAIN), now_s))


def dispatched(of: Decision) -> Event:
    return Dispatched(at_s=1.0, decision_id=of.decision_id)


def prefilled(of: Decision) -> Event:
    return Prefilled(at_s=2.0, decision_id=of.decision_id)


def prefill_lost(of: Decision) -> Event:
    return PrefillLost(at_s=2.0, decision_id=of.decision_id, blame=of.prefill_worker)


def first_token(of: Decision) -> Event:
    return FirstToken(at_s=3.0, decision_id=of.decision_id)


Step = Callable[[Decision], Event]


def orders(*steps: Step) -> list[tuple[Step, ...]]:
    """Every selection of the steps in their order: hosts may miss some, never swap them."""
    return list(chain.from_iterable(combinations(steps, count) for count in range(len(steps) + 1)))


LOCAL_LIVES = orders(dispatched, first_token)
REMOTE_LIVES = [*orders(dispatched, prefilled, first_token), *orders(dispatched, prefill_lost, first_token)]


def names(steps: Sequence[Step]) -> str:
    return " > ".join(step.__name__ for step in steps) or "at once"


class TestReservations:
    @pytest.mark.parametrize("life", LOCAL_LIVES, ids=names)
    def test_a_local_request_gives_all_back_whenever_it_ends(self, life: Sequence[Step]) -> None:
        of = local_router()
        decision = submit(of)
        assert decision.path is Path.LOCAL
        self._live_and_end(of, decision, life)

    @pytest.mark.parametrize("life", REMOTE_LIVES, ids=names)
    def test_a_remote_request_gives_all_back_whenever_it_ends(self, life: Sequence[Step]) -> None:
        of = remote_router()
        decision = submit(of)
        assert decision.path is Path.REMOTE
        self._live_and_end(of, decision, life)

    @staticmethod
    def _live_and_end(of: Router, decision: Decision, life: Sequence[Step]) -> None:
        for step in life:
            of.observe(step(decision))
            assert of.ledger.tally(DECODE).requests == 1
        of.observe(finished(decision, at_s=9.0))
        assert len(of.ledger) == 0
        assert (of.ledger.tally(PREFILL), of.ledger.tally(DECODE)) == (IDLE, IDLE)

    @pytest.mark.parametrize("life", REMOTE_LIVES, ids=names)
    def test_a_remote_request_gives_all_back_whenever_it_is_aborted(self, life: Sequence[Step]) -> None:
        of = remote_router()
        decision = submit(of)
        for step in life:
            of.observe(step(decision))
        of.abort(decision.decision_id, 9.0)
        assert (of.ledger.tally(PREFILL), of.ledger.tally(DECODE)) == (IDLE, IDLE)

    def test_the_local_path_reserves_uncached_prompt_and_whole_answer(self) -> None:
        of = local_router()
        of.observe(finished(submit(of, facts(tokens=64, chain=CHAIN[:1])), at_s=0.0))
        of.prefix.store(DECODE, CHAIN[:1])
        submit(of, facts(tokens=256, chain=CHAIN, max_output_tokens=100))
        assert of.ledger.tally(DECODE) == Tally(requests=1, prefill_tokens=192, kv_tokens=356)

    def test_the_remote_path_reserves_prompt_here_and_answer_there(self) -> None:
        of = remote_router()
        submit(of, facts(tokens=256, max_output_tokens=100))
        assert of.ledger.tally(PREFILL) == Tally(requests=1, prefill_tokens=256, kv_tokens=256)
        awaited = Tally(requests=1, kv_tokens=356, awaited_requests=1, awaited_kv_tokens=356)
        assert of.ledger.tally(DECODE) == awaited

    def test_every_answer_of_a_request_is_reserved(self) -> None:
        of = local_router()
        submit(of, facts(tokens=256, prompts=2, choices=3, max_output_tokens=100))
        assert of.ledger.tally(DECODE).kv_tokens == 256 + 2 * 3 * 100

    def test_the_end_of_an_unknown_decision_is_a_bug_of_the_host(self) -> None:
        of = local_router()
        decision = submit(of)
        of.observe(finished(decision))
        for again in (dispatched, first_token, prefilled, prefill_lost, finished):
            with pytest.raises(LedgerError):
                of.observe(again(decision))
        with pytest.raises(LedgerError):
            of.abort(decision.decision_id, 0.0)

    @pytest.mark.parametrize(
        ("life", "illegal"),
        [
            ((dispatched,), dispatched),
            ((first_token,), dispatched),
            ((first_token,), first_token),
            ((first_token,), prefilled),
            ((prefilled,), prefilled),
            ((prefilled,), prefill_lost),
            ((prefill_lost,), prefilled),
            ((first_token,), prefill_lost),
        ],
        ids=lambda value: value.__name__ if callable(value) else names(value),
    )
    def test_a_step_backwards_is_refused_and_changes_nothing(self, life: Sequence[Step], illegal: Step) -> None:
        of = remote_router()
        decision = submit(of)
        for step in life:
            of.observe(step(decision))
        before = (repr(of.ledger.tally(PREFILL)), repr(of.ledger.tally(DECODE)), of.health.get(PREFILL).failures)
        with pytest.raises(LedgerError):
            of.observe(illegal(decision))
        after = (repr(of.ledger.tally(PREFILL)), repr(of.ledger.tally(DECODE)), of.health.get(PREFILL).failures)
        assert after == before

    def test_a_worker_may_leave_before_its_requests_end(self) -> None:
        of = remote_router()
        decision = submit(of)
        for name in (PREFILL, DECODE):
            of.observe(WorkerDown(at_s=1.0, worker_id=name))
        for step in (dispatched, prefill_lost, first_token):
            of.observe(step(decision))
        of.observe(finished(decision, kind=OutcomeKind.UPSTREAM_ERROR, blame=DECODE))
        assert len(of.ledger) == 0
        assert len(of.prefix) == 0


class TestPrefixIndex:
    @staticmethod
    def _hits(of: Router) -> dict[str, int]:
        return {str(name): blocks for name, blocks in of.prefix.hit_blocks(CHAIN).items()}

    def test_a_prompt_is_known_from_its_dispatch_on(self) -> None:
        of = local_router()
        decision = submit(of)
        assert self._hits(of) == {}
        of.observe(dispatched(decision))
        assert self._hits(of) == {"d0": 4}

    def test_a_remote_prompt_is_known_on_the_decode_worker_after_the_transfer(self) -> None:
        of = remote_router()
        decision = submit(of)
        of.observe(dispatched(decision))
        assert self._hits(of) == {"p0": 4}
        of.observe(prefilled(decision))
        assert self._hits(of) == {"p0": 4, "d0": 4}

    def test_a_lost_prefill_makes_the_prompt_known_on_the_decode_worker(self) -> None:
        of = remote_router()
        decision = submit(of)
        of.observe(prefill_lost(decision))
        assert self._hits(of) == {"d0": 4}

    def test_an_aborted_decision_leaves_no_trace(self) -> None:
        of = local_router()
        of.abort(submit(of).decision_id, 0.0)
        assert self._hits(of) == {}

    def test_a_worker_that_comes_back_has_an_empty_cache(self) -> None:
        of = local_router()
        of.observe(dispatched(submit(of)))
        of.observe(WorkerDown(at_s=2.0, worker_id=DECODE))
        of.observe(WorkerUp(at_s=3.0, spec=D0))
        assert self._hits(of) == {}

    def test_the_index_of_a_worker_is_bounded_by_its_cache(self) -> None:
        # 8 blocks of 16 tokens are two index blocks of 64.
        of = router(worker("d0", kv_total_blocks=8))
        of.observe(dispatched(submit(of)))
        assert self._hits(of) == {"d0": 2}

    def test_a_scraped_cache_size_bounds_what_is_held_already(self) -> None:
        of = local_router()
        of.observe(dispatched(submit(of)))
        scrape(of, "d0", kv_total_blocks=12)
        assert self._hits(of) == {"d0": 3}

    def test_a_tiny_cache_still_indexes_one_block(self) -> None:
        of = router(worker("d0", kv_total_blocks=1))
        of.observe(dispatched(submit(of)))
        assert self._hits(of) == {"d0": 1}

    def test_one_that_caches_no_prefixes_is_thought_to_hold_none(self) -> None:
        of = router(worker("d0", kv_total_blocks=8, caches_prefixes=False))
        of.observe(dispatched(submit(of)))
        assert self._hits(of) == {}

    def test_the_policys_bound_holds_where_the_cache_is_larger_or_unknown(self) -> None:
        for spec in (D0, worker("d0", kv_total_blocks=10_000)):
            of = router(spec, policy=Policy(path=AlwaysLocal(), index_blocks_per_worker=3))
            of.observe(dispatched(submit(of)))
            assert self._hits(of) == {"d0": 3}


class TestCalibration:
    @staticmethod
    def _after(about: RequestFacts, **ended: Any) -> tuple[float, float]:
        of = local_router()
        of.observe(finished(submit(of, about), **ended))
        return of.calibration.bytes_per_token(MODEL), of.calibration.osl_tokens(MODEL)

    TEXT = facts(prompt_bytes=20_000)

    def test_a_good_answer_teaches_both_estimates(self) -> None:
        bytes_per_token, osl = self._after(self.TEXT, input_tokens=10_000, output_tokens=10)
        assert bytes_per_token < 3.0
        assert osl < 256.0

    @pytest.mark.parametrize("kind", [kind for kind in OutcomeKind if kind is not OutcomeKind.OK])
    def test_any_other_end_teaches_nothing(self, kind: OutcomeKind) -> None:
        assert self._after(self.TEXT, kind=kind, input_tokens=10_000, output_tokens=10) == (4.0, 256.0)

    def test_counts_that_are_missing_teach_nothing(self) -> None:
        assert self._after(self.TEXT) == (4.0, 256.0)

    @pytest.mark.parametrize(
        "about", [facts(prompt_bytes=20_000, media_parts=1), facts(tokens=10_000)], ids=["media", "token ids"]
    )
    def test_a_prompt_that_is_not_all_text_says_nothing_about_bytes(self, about: RequestFacts) -> None:
        assert self._after(about, input_tokens=10_000)[0] == 4.0

    @pytest.mark.parametrize("several", [{"choices": 2}, {"prompts": 2}])
    def test_the_sum_of_several_answers_says_nothing_about_one(self, several: dict[str, Any]) -> None:
        about = facts(prompt_bytes=20_000, **several)
        assert self._after(about, input_tokens=10_000, output_tokens=10)[1] == 256.0

    def test_an_answer_beyond_its_limit_is_not_believed(self) -> None:
        about = facts(prompt_bytes=20_000, max_output_tokens=10)
        assert self._after(about, output_tokens=11)[1] == 256.0

    def test_the_next_estimate_uses_what_was_learnt(self) -> None:
        of = local_router()
        for _ in range(50):
            of.observe(finished(submit(of, self.TEXT), input_tokens=10_000, output_tokens=10))
        learnt = submit(of, self.TEXT).features
        assert learnt.isl_tokens == pytest.approx(10_000, rel=0.02)
        assert learnt.osl_tokens < 60


class TestHealth:
    def test_only_blame_counts_against_a_worker(self) -> None:
        of = local_router(D1)
        for kind in OutcomeKind:
            if kind is not OutcomeKind.OK:
                for _ in range(10):
                    of.observe(finished(submit(of), kind=kind))
        assert of.health.get(DECODE).failures == 0.0
        assert of.health.get(DECODE).requests == 0.0

    def test_a_blamed_end_and_a_blamed_abort_count_alike(self) -> None:
        of = local_router(D1)
        for _ in range(2):
            of.observe(finished(submit(of), kind=OutcomeKind.UPSTREAM_ERROR, blame=DECODE))
        for _ in range(3):
            of.abort(submit(of).decision_id, 1.0, blame=DECODE)
        assert of.health.get(DECODE).state is HealthState.OPEN

    def test_a_good_end_is_a_success_of_both_workers(self) -> None:
        of = remote_router()
        of.observe(finished(submit(of)))
        assert of.health.get(PREFILL).requests == of.health.get(DECODE).requests == 1.0

    def test_a_good_local_end_says_nothing_about_prefill_workers(self) -> None:
        of = router(P0, D0, policy=Policy(path=AlwaysLocal()))
        of.observe(finished(submit(of)))
        assert of.health.get(PREFILL).requests == 0.0

    def test_blame_for_the_prefill_worker_leaves_the_decode_worker_alone(self) -> None:
        of = remote_router()
        of.observe(finished(submit(of), kind=OutcomeKind.UPSTREAM_ERROR, blame=PREFILL))
        assert of.health.get(PREFILL).failures == 1.0
        assert of.health.get(DECODE).requests == 0.0

    def test_a_prefill_worker_that_always_fails_is_ejected_though_every_answer_ends_well(self) -> None:
        of = remote_router()
        for _ in range(5):
            decision = submit(of)
            assert decision.path is Path.REMOTE
            of.observe(prefill_lost(decision))
            of.observe(finished(decision))
        assert of.health.get(PREFILL).state is HealthState.OPEN
        assert submit(of).path is Path.LOCAL

    def test_a_lost_prefill_without_blame_is_neither_success_nor_failure(self) -> None:
        of = remote_router()
        decision = submit(of)
        of.observe(PrefillLost(at_s=1.0, decision_id=decision.decision_id, blame=None))
        of.observe(finished(decision))
        assert of.health.get(PREFILL).requests == 0.0

    def test_a_worker_that_left_comes_back_well(self) -> None:
        of = local_router(D1)
        for _ in range(5):
            of.observe(finished(submit(of), kind=OutcomeKind.UPSTREAM_ERROR, blame=DECODE))
        assert of.health.get(DECODE).state is HealthState.OPEN
        of.observe(WorkerDown(at_s=1.0, worker_id=DECODE))
        of.observe(WorkerUp(at_s=2.0, spec=D0))
        assert of.health.get(DECODE).state is HealthState.CLOSED

    def test_probes_and_ticks_reach_the_health_table(self) -> None:
        of = local_router(D1)
        for _ in range(3):
            of.observe(WorkerProbed(at_s=0.0, worker_id=DECODE, healthy=False))
        assert of.health.get(DECODE).state is HealthState.DOWN
        for _ in range(5):
            of.health.failed(WorkerId("d1"), 0.0)
        of.tick(10.0)
        assert of.health.get(WorkerId("d1")).state is HealthState.HALF_OPEN


class TestSlo:
    def test_a_judged_end_is_counted_once_by_class_and_path(self) -> None:
        of = remote_router()
        of.observe(finished(submit(of), at_s=5.0, attained=True))
        of.observe(finished(submit(of), at_s=6.0, attained=False))
        assert of.slo.met == {("default", Path.REMOTE): 1}
        assert of.slo.missed == {("default", Path.REMOTE): 1}
        assert of.slo.burn_rate("default", 60.0, 6.0) == pytest.approx(50.0)

    def test_an_end_that_was_not_judged_is_not_counted(self) -> None:
        of = local_router()
        of.observe(finished(submit(of), kind=OutcomeKind.CANCELLED, attained=None))
        assert (of.slo.met, of.slo.missed) == ({}, {})

    def test_an_abort_is_not_judged(self) -> None:
        of = local_router()
        of.abort(submit(of).decision_id, 9.0, blame=DECODE)
        assert (of.slo.met, of.slo.missed) == ({}, {})


class TestDecisionIds:
    def test_they_are_unique_and_name_the_router(self) -> None:
        of, twin = local_router(), router(D0, instance="twin")
        made = [submit(each).decision_id for each in (of, of, twin, of, twin)]
        assert made == ["gw-1", "gw-2", "twin-1", "gw-3", "twin-2"]

    def test_an_ended_decisions_id_is_not_used_again(self) -> None:
        of = local_router()
        of.abort(submit(of).decision_id, 0.0)
        assert submit(of).decision_id == "gw-2"


class TestTrials:
    """A worker on trial, and requests that it has from before."""

    def test_the_trial_of_a_prefill_worker_ends_with_its_leg(self) -> None:
        for end in (prefilled, prefill_lost, finished):
            of = remote_router()
            for _ in range(5):
                of.health.failed(PREFILL, 0.0)
            of.tick(10.0)
            trial = submit(of)
            assert trial.prefill_worker == PREFILL
            assert submit(of).path is Path.LOCAL
            of.observe(end(trial))
            assert of.health.get(PREFILL).trials == set()
            # The lost one was blamed too.
            assert submit(of).path is (Path.LOCAL if end is prefill_lost else Path.REMOTE)

    def test_the_trial_of_a_decode_worker_ends_with_its_request(self) -> None:
        of = local_router()
        old = submit(of)
        for _ in range(5):
            of.health.failed(DECODE, 0.0)
        of.tick(10.0)
        assert of.health.is_well(DECODE)
        trial = submit(of)
        assert not of.health.is_well(DECODE)
        of.observe(finished(old))
        assert not of.health.is_well(DECODE)
        of.abort(trial.decision_id, 11.0)
        assert of.health.is_well(DECODE)


class TestSignsOfLife:
    @staticmethod
    def _late(of: Router, times: int) -> None:
        for name in (PREFILL, DECODE):
            for _ in range(times):
                of.observe(WorkerProbed(at_s=0.0, worker_id=name, healthy=False, timed_out=True))

    def test_a_worker_that_serves_is_not_taken_down_by_late_probes_alone(self) -> None:
        of = remote_router()
        decision = submit(of)
        for step in (prefilled, first_token, finished):
            self._late(of, 2)
            of.observe(step(decision))
        assert of.health.get(DECODE).state is HealthState.CLOSED
        self._late(of, 5)
        assert of.health.get(DECODE).state is HealthState.CLOSED

    def test_a_scrape_says_nothing_of_the_engine(self) -> None:
        of = remote_router()
        self._late(of, 5)
        scrape(of, "d0", running=1)
        self._late(of, 1)
        assert of.health.get(DECODE).state is HealthState.DOWN

    def test_a_prefill_is_a_sign_of_life_of_its_worker_alone(self) -> None:
        of = remote_router()
        decision = submit(of)
        self._late(of, 5)
        of.observe(prefilled(decision))
        self._late(of, 1)
        assert of.health.get(PREFILL).state is HealthState.CLOSED
        assert of.health.get(DECODE).state is HealthState.DOWN


class _Draws:
    """A policy that says which number it drew."""

    name = "draws"

    def choose(self, question: PathQuestion, rng: Random) -> PathChoice:
        return PathChoice(path=Path.LOCAL, reason=Reason.ALWAYS_LOCAL, words=str(rng.random()))


def _numbers(seed: int, count: int) -> list[float]:
    rng = Random(seed)
    return [rng.random() for _ in range(count)]


class TestPreview:
    def test_it_answers_as_submit_would_and_takes_nothing(self) -> None:
        of = remote_router(D1)
        asked = [of.preview(facts(tokens=256, chain=CHAIN), 0.0) for _ in range(3)]
        assert len(of.ledger) == 0
        assert of.ledger.tally(DECODE) == IDLE
        assert asked == [submit(of)] * 3

    def test_it_takes_no_number_from_the_generator(self) -> None:
        of = Router(Policy(path=_Draws()), rng=Random(5), instance="gw")
        for spec in (P0, D0):
            of.observe(WorkerUp(at_s=0.0, spec=spec))
        first, second = (str(number) for number in _numbers(5, 2))
        previews = [of.preview(facts(tokens=256), 0.0) for _ in range(3)]
        assert [routed(each).words for each in previews] == [first] * 3
        assert [submit(of).words for _ in range(2)] == [first, second]

    def test_it_refuses_as_submit_would(self) -> None:
        of = router()
        assert of.preview(facts(), 0.0) == of.submit(facts(), 0.0)


def test_workers_unknown_to_the_router_are_ignored() -> None:
    of = router(D0)
    gone = WorkerId("gone")
    scrape(of, "gone", running=5, kv_total_blocks=10)
    of.observe(WorkerProbed(at_s=0.0, worker_id=gone, healthy=False))
    of.observe(WorkerDown(at_s=0.0, worker_id=gone))
    assert [state.spec.worker_id for state in of.fleet] == ["d0"]
    assert submit(of).decode_worker == "d0"
