"""ConServe through the router's own door."""

from dataclasses import replace
from typing import Any

import pytest

from gateway.core.conversation.facts import ConversationFacts, TurnKind
from gateway.core.conversation.rules import ConversationRules, Mode, Pinning
from gateway.core.events import Dispatched, Prefilled, WorkerDown, WorkerDraining, WorkerUp
from gateway.core.path.base import PolicyError
from gateway.core.path.rules import AlwaysLocal, AlwaysRemote
from gateway.core.policy import Policy
from gateway.core.router import Router
from gateway.core.types import Decision, OutcomeKind, Path, Reason, Refusal, RequestFacts, Role, WorkerId
from gateway.core.waiting import Ticket, Wait
from tests.core.factories import MODEL, facts, finished, routed, router, worker

P0, P1 = worker("p0", Role.PREFILL), worker("p1", Role.PREFILL)


def decoder(name: str, tokens: int = 16_000) -> Any:
    return worker(name, kv_total_blocks=tokens // 16)


D0, D1 = decoder("d0"), decoder("d1")


def policy(**rules: Any) -> Policy:
    fields: dict[str, Any] = {"mode": Mode.CONSERVE, **rules}
    return Policy(path=AlwaysLocal(), conversation=ConversationRules(**fields))


def turn(label: str, number: int = 0, *, tokens: int = 1000, final: bool = False, **changes: Any) -> RequestFacts:
    """The turn of a conversation, counted from 0."""
    turns = tuple(range(number + 1))
    conversation = ConversationFacts(label=label, turns=turns, is_final=final)
    return facts(f"{label}/{number}", tokens=tokens, conversation=conversation, max_output_tokens=100, **changes)


def serve(of: Router, about: RequestFacts, now_s: float = 0.0, **outcome: Any) -> Decision:
    """Route a turn and let it end."""
    decision = routed(of.submit(about, now_s))
    end(of, decision, now_s, **outcome)
    return decision


def end(of: Router, decision: Decision, now_s: float = 0.0, **outcome: Any) -> None:
    of.observe(Dispatched(at_s=now_s, decision_id=decision.decision_id))
    if decision.path is Path.REMOTE:
        of.observe(Prefilled(at_s=now_s, decision_id=decision.decision_id))
    isl = decision.features.isl_tokens
    of.observe(finished(decision, at_s=now_s, **{"input_tokens": isl, "output_tokens": 100, **outcome}))


class TestTurns:
    def test_the_first_prefill_is_remote_and_every_later_one_where_the_cache_is(self) -> None:
        of = router(P0, D0, D1, policy=policy())
        first = serve(of, turn("a"))
        assert (first.path, first.reason, first.prefill_worker) == (Path.REMOTE, Reason.CONVERSATION_BEGINS, "p0")
        assert (first.turn, first.pinned) == (TurnKind.FIRST, False)
        for number in range(1, 5):
            later = serve(of, turn("a", number, tokens=1000 + 200 * number))
            assert (later.path, later.reason) == (Path.LOCAL, Reason.CONVERSATION_GOES_ON)
            assert later.decode_worker == first.decode_worker
            assert (later.turn, later.pinned, later.conversation) == (TurnKind.NEXT, True, first.conversation)
        (known,) = of.conversations.book
        assert (known.transfers, known.rehomes, known.turns, known.kv_tokens) == (1, 0, 5, 1900)

    def test_a_request_of_no_conversation_is_the_path_policys(self) -> None:
        of = router(P0, D0, policy=policy())
        decision = routed(of.submit(facts(tokens=1000), 0.0))
        assert (decision.reason, decision.conversation) == (Reason.ALWAYS_LOCAL, None)

    def test_the_mode_is_the_models(self) -> None:
        of = router(P0, D0, policy=policy(by_model=((MODEL, Mode.OFF),)))
        assert serve(of, turn("a")).reason is Reason.ALWAYS_LOCAL
        assert not len(of.conversations.book)

    def test_calls_of_one_conversation_at_once_land_together(self) -> None:
        of = router(P0, D0, D1, policy=policy())
        homes = {routed(of.submit(turn("a"), 0.0)).decode_worker for _ in range(4)}
        assert len(homes) == 1

    def test_the_last_turn_gives_the_room_back(self) -> None:
        of = router(P0, D0, policy=policy())
        serve(of, turn("a"))
        serve(of, turn("a", 1, final=True))
        assert not len(of.conversations.book)
        assert of.conversations.book.held_tokens(D0.worker_id) == 0

    def test_a_conversation_that_nobody_goes_on_with_is_forgotten(self) -> None:
        of = router(P0, D0, policy=policy(idle_ttl_s=10.0))
        serve(of, turn("a"), 0.0)
        of.tick(10.5)
        assert not len(of.conversations.book)

    def test_a_tiny_first_turn_may_prefill_at_home(self) -> None:
        of = router(P0, D0, policy=policy(local_below_tokens=500))
        assert serve(of, turn("a", tokens=499)).path is Path.LOCAL
        assert serve(of, turn("b", tokens=500)).path is Path.REMOTE

    def test_what_cannot_be_handed_over_is_local_from_the_first_turn(self) -> None:
        of = router(P0, D0, policy=policy())
        assert serve(of, turn("a", choices=2)).reason is Reason.RULE_SEVERAL_CHOICES
        assert serve(of, turn("a", 1)).reason is Reason.CONVERSATION_GOES_ON


class TestPlaces:
    def test_a_new_conversation_gets_the_decode_worker_with_the_most_room(self) -> None:
        of = router(P0, decoder("d0", 32_000), decoder("d1", 16_000), policy=policy())
        homes = [serve(of, turn(f"c{number}")).decode_worker for number in range(6)]
        assert (homes.count(WorkerId("d0")), homes.count(WorkerId("d1"))) == (4, 2)

    def test_its_prompt_goes_to_the_prefill_worker_that_is_done_first(self) -> None:
        of = router(P0, P1, D0, policy=policy())
        first = routed(of.submit(turn("a", tokens=3000), 0.0))
        second = routed(of.submit(turn("b", tokens=500), 0.0))
        third = routed(of.submit(turn("c", tokens=500), 0.0))
        assert first.prefill_worker != second.prefill_worker == third.prefill_worker

    def test_moving_an_idle_conversation_is_an_option(self) -> None:
        of = router(P0, D0, D1, policy=policy(rebalance_ratio=0.3))
        home = serve(of, turn("a", tokens=3000)).decode_worker
        serve(of, turn("b", tokens=100))
        assert serve(of, turn("a", 1, tokens=6000)).decode_worker == home
        stays = serve(of, turn("a", 2, tokens=13_500))  # there would be no room for so much elsewhere
        assert stays.decode_worker == home
        moved = serve(of, turn("a", 3, tokens=7000))
        assert moved.decode_worker != home
        assert (moved.path, moved.turn) == (Path.REMOTE, TurnKind.MOVED)


class TestLosses:
    def test_a_lost_decode_worker_moves_its_conversations_alone(self) -> None:
        of = router(P0, D0, D1, policy=policy())
        homes = {label: serve(of, turn(label)).decode_worker for label in "abcd"}
        of.observe(WorkerDown(at_s=1.0, worker_id=D0.worker_id))
        for label, home in homes.items():
            later = serve(of, turn(label, 1), 2.0)
            assert later.decode_worker == "d1"
            assert later.turn is (TurnKind.MOVED if home == "d0" else TurnKind.NEXT)
            assert (later.path is Path.REMOTE) == (home == "d0")
        assert sorted((one.transfers, one.rehomes) for one in of.conversations.book) == [(1, 0), (1, 0), (2, 1), (2, 1)]

    def test_a_draining_worker_gets_no_turn_more(self) -> None:
        of = router(P0, D0, D1, policy=policy())
        home = serve(of, turn("a")).decode_worker
        of.observe(WorkerDraining(at_s=1.0, worker_id=home))
        assert serve(of, turn("a", 1)).decode_worker != home

    def test_a_first_turn_that_is_tried_elsewhere_is_no_move(self) -> None:
        of = router(P0, D0, D1, policy=policy())
        first = routed(of.submit(turn("a"), 0.0))
        of.abort(first.decision_id, 0.5)
        assert not len(of.conversations.book)
        again = routed(of.submit(turn("a"), 0.5, exclude=frozenset({first.decode_worker}), attempt=2))
        end(of, again, 1.0)
        (known,) = of.conversations.book
        assert (known.rehomes, known.worker_id) == (0, again.decode_worker)
        assert of.conversations.book.held_tokens(first.decode_worker) == 0

    def test_a_turn_that_failed_leaves_the_conversation_where_it_is(self) -> None:
        of = router(P0, D0, D1, policy=policy())
        home = serve(of, turn("a")).decode_worker
        serve(of, turn("a", 1), kind=OutcomeKind.CANCELLED)
        assert serve(of, turn("a", 2)).decode_worker == home

    def test_without_a_decode_worker_it_is_refused_as_any_request(self) -> None:
        of = router(P0, D0, policy=policy())
        of.observe(WorkerDown(at_s=0.0, worker_id=D0.worker_id))
        of.observe(WorkerUp(at_s=0.0, spec=P1))
        assert isinstance(of.submit(turn("a"), 0.0), Refusal)


class TestWaiting:
    """d0 has room for 13,600 promised tokens; a conversation of 6,000 is promised 9,512."""

    def full(self, **rules: Any) -> tuple[Router, Decision]:
        of = router(P0, D0, policy=policy(**rules))
        return of, routed(of.submit(turn("a", tokens=6000), 0.0))

    def waits(self, of: Router, label: str, at_s: float = 0.0, tokens: int = 6000) -> Ticket:
        answer = of.submit(turn(label, tokens=tokens), at_s)
        assert isinstance(answer, Wait), answer
        return answer.ticket

    def test_a_new_conversation_without_room_waits_until_one_has_ended(self) -> None:
        of, first = self.full()
        ticket = self.waits(of, "b")
        assert of.release(0.5) == []
        end(of, first, 1.0)
        assert of.release(1.0) == []  # it may go on: its room is kept
        serve(of, turn("a", 1, tokens=6100, final=True), 1.5)
        ((called, answer),) = of.release(1.5)
        assert called == ticket
        assert routed(answer).turn is TurnKind.FIRST
        assert of.release(2.0) == []

    def test_they_come_in_their_order_and_later_turns_pass_them(self) -> None:
        of, first = self.full()
        tickets = [self.waits(of, label) for label in "bcd"]
        tiny = self.waits(of, "e", tokens=100)  # there would be room for it
        end(of, first, 1.0)
        assert routed(of.submit(turn("a", 1, tokens=6200), 1.0)).reason is Reason.CONVERSATION_GOES_ON
        of.give_up(tickets[1])
        of.observe(WorkerUp(at_s=2.0, spec=decoder("d1", 64_000)))
        assert [ticket for ticket, _ in of.release(2.0)] == [tickets[0], tickets[2], tiny]

    def test_idle_conversations_give_way_after_a_while(self) -> None:
        of, first = self.full(evict_after_s=2.0, tool_wait_s=60.0)
        end(of, first, 1.0)
        ticket = self.waits(of, "b", 100.0)
        assert of.release(101.9) == []
        ((called, answer),) = of.release(102.0)
        assert (called, routed(answer).decode_worker) == (ticket, "d0")
        end(of, routed(answer), 103.0)
        back = routed(of.submit(turn("a", 1, tokens=6100), 300.0))  # nothing is left of it, but it was let in before
        assert (back.turn, back.path) == (TurnKind.MOVED, Path.REMOTE)
        end(of, back, 303.0)
        (moved,) = [one for one in of.conversations.book if one.rehomes]
        assert (moved.transfers, moved.turns, moved.is_cold) == (2, 2, False)

    def test_one_that_comes_back_is_prefilled_where_it_is_done_sooner(self) -> None:
        of = router(P0, decoder("d0", 64_000), policy=policy(evict_after_s=None))
        first = serve(of, turn("a"))
        of.observe(WorkerDown(at_s=1.0, worker_id=WorkerId("d0")))
        of.observe(WorkerUp(at_s=2.0, spec=decoder("d1", 64_000)))
        routed(of.submit(turn("b", tokens=30_000), 3.0))  # the only prefill worker has this to do
        back = routed(of.submit(turn("a", 1, tokens=2000), 4.0))
        assert (first.path, back.path, back.turn) == (Path.REMOTE, Path.LOCAL, TurnKind.MOVED)

    def test_those_that_outgrow_their_worker_make_room_in_their_order(self) -> None:
        of = router(P0, decoder("d0", 16_000), policy=policy(tool_wait_s=0.0))
        for place, label in enumerate("abc"):
            serve(of, turn(label, tokens=2000), float(place))
        serve(of, turn("c", 1, tokens=13_000), 4.0)
        book = of.conversations.book
        assert [one.is_cold for one in book] == [True, False, False]
        assert book.held_tokens(WorkerId("d0")) <= 16_000

    def test_one_whose_tools_may_be_running_gives_no_way(self) -> None:
        of, first = self.full(evict_after_s=2.0, tool_wait_s=60.0, max_wait_s=1000.0)
        end(of, first, 1.0)
        self.waits(of, "b", 10.0)
        assert of.release(60.0) == []
        assert len(of.release(61.5)) == 1

    def test_with_a_plain_queue_nobody_gives_way(self) -> None:
        of, first = self.full(evict_after_s=None, max_wait_s=1000.0)
        end(of, first, 1.0)
        self.waits(of, "b", 100.0)
        assert of.release(900.0) == []

    def test_nobody_waits_for_ever_and_nobody_is_refused(self) -> None:
        of, _ = self.full(max_wait_s=30.0)
        self.waits(of, "b", 0.0)
        assert of.release(29.0) == []
        ((_, answer),) = of.release(30.0)
        assert routed(answer).turn is TurnKind.FIRST

    def test_who_was_routed_before_does_not_wait(self) -> None:
        of, _ = self.full()
        assert routed(of.submit(turn("b", tokens=6000), 0.0, attempt=2)).turn is TurnKind.FIRST

    def test_one_that_fits_nowhere_gets_an_empty_worker(self) -> None:
        of = router(P0, D0, policy=policy())
        assert routed(of.submit(turn("a", tokens=15_000), 0.0)).turn is TurnKind.FIRST

    def test_models_do_not_wait_for_each_other(self) -> None:
        other = worker("d9", models=("other",))
        of, _ = self.full()
        of.observe(WorkerUp(at_s=0.0, spec=other))
        self.waits(of, "b")
        assert routed(of.submit(turn("b", tokens=6000, model="other"), 0.0)).decode_worker == "d9"

    def test_a_preview_says_where_it_would_go_and_takes_no_ticket(self) -> None:
        of, _ = self.full()
        assert isinstance(of.preview(turn("b", tokens=6000), 0.0), Decision)
        assert not len(of.waiting)

    def test_those_that_wait_are_refused_when_the_last_worker_has_left(self) -> None:
        of, _ = self.full()
        ticket = self.waits(of, "b")
        of.observe(WorkerDown(at_s=1.0, worker_id=D0.worker_id))
        ((called, answer),) = of.release(1.0)
        assert called == ticket
        assert isinstance(answer, Refusal)


class TestAffinity:
    def test_by_load_the_pin_holds_and_the_path_policy_decides(self) -> None:
        rules = ConversationRules(mode=Mode.AFFINITY, pinning=Pinning.LOAD)
        of = router(P0, D0, D1, policy=Policy(path=AlwaysRemote(), conversation=rules))
        first = serve(of, turn("a"))
        for number in range(1, 4):
            later = serve(of, turn("a", number))
            assert (later.decode_worker, later.path, later.pinned) == (first.decode_worker, Path.REMOTE, True)

    def test_by_hash_nothing_is_remembered(self) -> None:
        of = router(P0, D0, D1, policy=Policy(path=AlwaysLocal()))
        turns = [serve(of, turn("x-session-id=a", number)) for number in range(4)]
        assert len({each.decode_worker for each in turns}) == 1
        assert [each.turn for each in turns] == [TurnKind.FIRST, *[TurnKind.NEXT] * 3]
        assert not len(of.conversations.book)

    def test_by_hash_a_conversation_without_a_name_is_a_request_like_any_other(self) -> None:
        of = router(D0, D1, policy=Policy(path=AlwaysLocal()))
        decision = serve(of, facts(tokens=1000, conversation=ConversationFacts(turns=(5, 6))))
        assert (decision.turn, decision.conversation, decision.pinned) == (None, None, False)

    def test_a_plain_client_that_resends_its_history_is_recognised(self) -> None:
        rules = ConversationRules(mode=Mode.AFFINITY, pinning=Pinning.LOAD)
        of = router(D0, D1, policy=Policy(path=AlwaysLocal(), conversation=rules))

        def plain(*turns: int) -> RequestFacts:
            return facts(tokens=1000, conversation=ConversationFacts(turns=turns))

        first = serve(of, plain(5))
        routed(of.submit(facts(tokens=4000), 0.0))  # the other worker would be the emptier one, or this one is
        assert serve(of, plain(5, 6)).decode_worker == first.decode_worker
        assert serve(of, plain(5, 6, 7)).decode_worker == first.decode_worker
        (known,) = of.conversations.book
        assert known.turns == 3


@pytest.mark.parametrize(
    "wrong",
    [
        {"capacity": 0},
        {"admit_ratio": 0.0},
        {"admit_ratio": 1.1},
        {"idle_ttl_s": -1.0},
        {"headroom_ratio": -0.1},
        {"rebalance_ratio": 0.0},
    ],
)
def test_rules_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(PolicyError):
        ConversationRules(**wrong)


class TestPresumedOver:
    """Usual pauses are a second; one that pauses for longer counts as over."""

    def served(self, **rules: Any) -> Router:
        of = router(P0, decoder("d0", 64_000), D1, policy=policy(tool_wait_s=60.0, **rules))
        for number in range(70):
            serve(of, turn("known", number, tokens=1000), float(number))
        return of

    def test_its_room_is_free_for_others(self) -> None:
        of = self.served()
        home = WorkerId(of.conversations.book.get(next(iter(of.conversations.book)).conversation_id).worker_id)  # type: ignore[union-attr]
        assert of.conversations.book.held_tokens(home) > 0
        of.tick(69.5)
        assert of.conversations.book.held_tokens(home) > 0
        of.tick(72.0)
        assert of.conversations.book.held_tokens(home) == 0

    def test_it_goes_on_at_home_where_its_kv_is_still_without_a_transfer(self) -> None:
        of = self.served()
        of.tick(72.0)
        (known,) = of.conversations.book
        home, transfers = known.worker_id, known.transfers
        about = turn("known", 70, tokens=1000)
        of.prefix.store(home, chain := tuple(range(8)))
        back = serve(of, replace(about, block_chains=(chain,), block_bytes=500), 80.0)
        assert (back.decode_worker, back.path, back.turn) == (home, Path.LOCAL, TurnKind.NEXT)
        assert (known.transfers, known.rehomes, known.is_cold) == (transfers, 0, False)

    def test_it_begins_anew_where_its_kv_is_gone(self) -> None:
        of = self.served()
        of.tick(72.0)
        (known,) = of.conversations.book
        back = serve(of, turn("known", 70, tokens=1000), 80.0)
        assert (back.path, back.turn, known.rehomes) == (Path.REMOTE, TurnKind.MOVED, 1)

    def test_nothing_is_presumed_where_that_is_switched_off(self) -> None:
        of = self.served(presumes_over=False)
        of.tick(100.0)
        (known,) = of.conversations.book
        assert not known.is_cold

    def test_one_that_only_has_a_pin_keeps_it_however_long_it_pauses(self) -> None:
        of = self.served(mode=Mode.AFFINITY, pinning=Pinning.LOAD)
        of.tick(100.0)
        (known,) = of.conversations.book
        assert not known.is_cold
        back = serve(of, turn("known", 70, tokens=1000), 120.0)
        assert (back.decode_worker, back.pinned) == (known.worker_id, True)
