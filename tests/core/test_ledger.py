from collections import Counter
from dataclasses import fields

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from gateway.core.ledger import Ledger, LedgerError, Reservation, Stage, Tally
from gateway.core.types import Decision, DecisionId, Path, WorkerId
from tests.core.factories import decision, facts

D0, P0 = WorkerId("d0"), WorkerId("p0")
IDLE = Tally()


def tally(prefill_tokens: int = 0, *, awaited: bool = False) -> Tally:
    """A decode worker's sums for one request; or while its KV is awaited from another worker."""
    return Tally(
        requests=1,
        prefill_tokens=prefill_tokens,
        kv_tokens=1256,
        awaited_requests=int(awaited),
        awaited_kv_tokens=1256 if awaited else 0,
    )


def test_a_copy_of_a_tally_has_all_its_sums_and_stays_as_it_is() -> None:
    live = Tally(**{each.name: place for place, each in enumerate(fields(Tally), start=1)})
    copy = live.copy()
    assert copy == live
    live.requests += 1
    assert copy != live


def reservation(of: Decision, *, kv_tokens: int = 1256) -> Reservation:
    """What the router reserves for a decision."""
    remote = of.prefill_worker is not None
    return Reservation(
        decision=of,
        facts=facts(),
        at_s=0.0,
        kv_tokens=kv_tokens,
        prefill_worker=of.prefill_worker or of.decode_worker,
        prefill_tokens=of.features.prefill_isl_tokens if remote else of.features.decode_isl_tokens,
    )


def local(name: str = "d-1") -> Reservation:
    return reservation(decision(name, isl=1000, decode_hit=600))


def remote(name: str = "d-1") -> Reservation:
    return reservation(decision(name, prefill="p0", isl=1000, prefill_hit=300, decode_hit=600))


def ledger(*reservations: Reservation) -> Ledger:
    made = Ledger()
    for each in reservations:
        made.reserve(each)
    return made


ONE = DecisionId("d-1")


class TestLocalPath:
    def test_the_decode_worker_has_the_prefill_until_the_first_token(self) -> None:
        of = ledger(local())
        assert of.tally(D0) == tally(400)
        of.advance(ONE, Stage.DISPATCHED)
        assert of.tally(D0).prefill_tokens == 400
        of.advance(ONE, Stage.STREAMING)
        assert of.tally(D0) == tally()

    def test_the_end_gives_all_back(self) -> None:
        of = ledger(local())
        assert of.release(ONE).decision.decision_id == ONE
        assert of.tally(D0) == IDLE
        assert of.get(ONE) is None


class TestRemotePath:
    def test_the_prefill_worker_has_prompt_and_prefill_while_it_works(self) -> None:
        of = ledger(remote())
        assert of.tally(P0) == Tally(requests=1, prefill_tokens=700, kv_tokens=1000)
        assert of.tally(D0) == tally(awaited=True)

    @pytest.mark.parametrize("stage", [Stage.PREFILLED, Stage.STREAMING])
    def test_the_prefill_worker_is_free_once_it_is_done(self, stage: Stage) -> None:
        of = ledger(remote())
        of.advance(ONE, stage)
        assert of.tally(P0) == IDLE
        assert of.tally(D0) == tally()

    def test_a_lost_prefill_moves_to_the_decode_worker(self) -> None:
        of = ledger(remote())
        lost = of.prefill_lost(ONE)
        assert (lost.decision.path, lost.decision.prefill_worker) == (Path.LOCAL, None)
        assert of.uses(P0) == 0
        assert of.tally(P0) == IDLE
        assert of.tally(D0) == tally(400)
        of.advance(ONE, Stage.STREAMING)
        assert of.tally(D0).prefill_tokens == 0

    def test_an_end_before_the_prefill_gives_both_workers_back(self) -> None:
        of = ledger(remote())
        of.release(ONE)
        assert (of.tally(P0), of.tally(D0), len(of)) == (IDLE, IDLE, 0)


def test_a_decision_reserves_once() -> None:
    of = ledger(local())
    with pytest.raises(LedgerError, match="reserved already"):
        of.reserve(local())
    assert of.tally(D0).requests == 1


def test_a_decision_ends_once() -> None:
    of = ledger(local(), local("d-2"))
    of.release(ONE)
    with pytest.raises(LedgerError, match="holds no reservation"):
        of.release(ONE)
    assert of.tally(D0).requests == 1


def test_an_unknown_decision_cannot_move() -> None:
    with pytest.raises(LedgerError):
        Ledger().advance(ONE, Stage.DISPATCHED)
    with pytest.raises(LedgerError):
        Ledger().prefill_lost(ONE)


@pytest.mark.parametrize("stage", list(Stage)[1:])
def test_stages_only_move_forward(stage: Stage) -> None:
    of = ledger(remote())
    of.advance(ONE, stage)
    before = tally(awaited=stage < Stage.PREFILLED)
    for back in range(stage + 1):
        with pytest.raises(LedgerError, match="cannot go from"):
            of.advance(ONE, Stage(back))
    assert of.tally(D0) == before


def test_a_prefill_is_lost_once_and_not_after_its_end() -> None:
    of = ledger(remote())
    of.prefill_lost(ONE)
    with pytest.raises(LedgerError):
        of.prefill_lost(ONE)
    assert of.tally(D0).prefill_tokens == 400


def test_an_idle_worker_leaves_nothing_behind() -> None:
    of = Ledger()
    for turn in range(50):
        name = f"d-{turn}"
        of.reserve(reservation(decision(name, decode=f"decode-{turn}", prefill=f"prefill-{turn}")))
        of.release(DecisionId(name))
    assert of._tallies == {}
    assert of._reservations == {}


class LedgerMachine(RuleBasedStateMachine):
    """Any order of calls: the tallies are the sums over what is open, and an illegal call changes nothing."""

    open_decisions = Bundle("open_decisions")

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger()
        self.open: dict[DecisionId, Decision] = {}
        self.kv_tokens: dict[DecisionId, int] = {}
        self.stage: dict[DecisionId, Stage] = {}
        self.lost: set[DecisionId] = set()
        self.made = 0

    @rule(
        target=open_decisions,
        decode=st.sampled_from(["w0", "w1", "w2"]),
        prefill=st.sampled_from([None, "w0", "w1", "w2"]),
        isl=st.integers(0, 5_000),
        hit=st.integers(0, 5_000),
        osl=st.integers(0, 500),
    )
    def reserve(self, decode: str, prefill: str | None, isl: int, hit: int, osl: int) -> DecisionId:
        self.made += 1
        prefiller = None if prefill == decode else prefill
        hits = {"decode_hit": min(isl, hit), "prefill_hit": min(isl, hit // 2)}
        of = decision(f"d-{self.made}", decode=decode, prefill=prefiller, isl=isl, **hits)
        self.ledger.reserve(reservation(of, kv_tokens=isl + osl))
        self.open[of.decision_id] = of
        self.kv_tokens[of.decision_id] = isl + osl
        self.stage[of.decision_id] = Stage.RESERVED
        return of.decision_id

    @rule(decision_id=open_decisions, stage=st.sampled_from(Stage))
    def advance(self, decision_id: DecisionId, stage: Stage) -> None:
        if stage > self.stage[decision_id]:
            self.ledger.advance(decision_id, stage)
            self.stage[decision_id] = stage
        else:
            with pytest.raises(LedgerError):
                self.ledger.advance(decision_id, stage)

    @rule(decision_id=open_decisions)
    def lose_prefill(self, decision_id: DecisionId) -> None:
        if self.stage[decision_id] < Stage.PREFILLED:
            self.ledger.prefill_lost(decision_id)
            self.stage[decision_id] = Stage.PREFILLED
            self.lost.add(decision_id)
        else:
            with pytest.raises(LedgerError):
                self.ledger.prefill_lost(decision_id)

    @rule(decision_id=consumes(open_decisions))
    def release(self, decision_id: DecisionId) -> None:
        self.ledger.release(decision_id)
        del self.open[decision_id]
        with pytest.raises(LedgerError):
            self.ledger.release(decision_id)

    @invariant()
    def tallies_are_the_sums_over_open_reservations(self) -> None:
        requests: Counter[str] = Counter()
        prefill: Counter[str] = Counter()
        kv: Counter[str] = Counter()
        awaited: Counter[str] = Counter()
        awaited_kv: Counter[str] = Counter()
        for decision_id, of in self.open.items():
            requests[of.decode_worker] += 1
            kv[of.decode_worker] += self.kv_tokens[decision_id]
            stage, isl = self.stage[decision_id], of.features.isl_tokens
            if of.prefill_worker is not None and stage < Stage.PREFILLED:
                requests[of.prefill_worker] += 1
                kv[of.prefill_worker] += isl
                prefill[of.prefill_worker] += of.features.prefill_isl_tokens
                awaited[of.decode_worker] += 1
                awaited_kv[of.decode_worker] += self.kv_tokens[decision_id]
            elif stage < Stage.PREFILLED or (stage is Stage.PREFILLED and decision_id in self.lost):
                prefill[of.decode_worker] += of.features.decode_isl_tokens
        for name in ("w0", "w1", "w2"):
            assert self.ledger.tally(WorkerId(name)) == Tally(
                requests=requests[name],
                prefill_tokens=prefill[name],
                kv_tokens=kv[name],
                awaited_requests=awaited[name],
                awaited_kv_tokens=awaited_kv[name],
            )

    @invariant()
    def nothing_is_kept_for_what_has_ended(self) -> None:
        assert len(self.ledger) == len(self.open)
        if not self.open:
            assert self.ledger._tallies == {}


TestTalliesAreSums = LedgerMachine.TestCase
TestTalliesAreSums.settings = settings(max_examples=40, stateful_step_count=30)


class TestUses:
    def test_a_prefill_worker_is_needed_until_the_first_token(self) -> None:
        of = ledger(remote())
        for stage in (Stage.DISPATCHED, Stage.PREFILLED):
            of.advance(ONE, stage)
            assert (of.uses(P0), of.uses(D0)) == (1, 1)
        of.advance(ONE, Stage.STREAMING)
        assert (of.uses(P0), of.uses(D0)) == (0, 1)
        of.release(ONE)
        assert of.uses(D0) == 0

    def test_a_lost_prefill_worker_is_needed_no_more(self) -> None:
        of = ledger(remote())
        of.prefill_lost(ONE)
        assert (of.uses(P0), of.uses(D0)) == (0, 1)
