"""What the others are told of a replica's turns, and what it makes of what they tell."""

import pytest

from gateway.core.conversation.facts import TurnKind
from gateway.core.conversation.rules import Mode, Pinning
from gateway.core.conversation.shared_key import key_of
from gateway.core.events import ConversationClosed, ConversationTold, KvPinned
from gateway.core.types import OutcomeKind, Path, Role
from gateway.fleet.shared.pins import LEAST_TOKENS
from tests.core.factories import worker
from tests.fleet.shared.played_shared import DECODERS, PlayedReplica, PlayedState, nameless, pinned, turn


class TestTelling:
    async def test_a_turn_is_told_as_it_begins_and_as_it_ends(self) -> None:
        replica = PlayedReplica()
        decision = await replica.submit(turn())
        key = key_of(replica.known)
        assert replica.shared.told == [("touch", key)]
        replica.end(decision)
        assert replica.shared.told == [("touch", key)] * 2
        pin = replica.shared.pins[key]
        assert (pin.worker_id, pin.kv_tokens, pin.turns, pin.last_seen_s) == (decision.decode_worker, 1010, 1, 100.0)

    async def test_without_a_name_the_next_key_is_told_as_the_turn_begins_and_the_last_one_closed(self) -> None:
        replica = PlayedReplica()
        await replica.serve(nameless())
        first = key_of(replica.known)
        assert replica.shared.told == [("touch", first)] * 2
        decision = await replica.submit(nameless(1))
        left = next(key for key in replica.shared.pins if key != first)
        assert [replica.shared.pins[key].kv_tokens for key in (first, left)] == [1010, 1]  # it is counted once
        replica.end(decision)
        assert left == key_of(replica.known)
        assert replica.shared.told[2:] == [("touch", first), ("touch", left), ("close", first), ("touch", left)]
        assert list(replica.shared.pins) == [left]

    async def test_a_turn_that_is_tried_anew_keeps_its_next_key(self) -> None:
        replica = PlayedReplica()
        await replica.serve(nameless())
        given_up = await replica.submit(nameless(1))
        again = await replica.submit(nameless(1))
        replica.core.abort(given_up.decision_id, replica.now_s)
        assert len(replica.shared.pins) == 2
        replica.core.abort(again.decision_id, replica.now_s)
        assert list(replica.shared.pins) == [key_of(replica.known)]

    @pytest.mark.parametrize("make", [turn, nameless])
    async def test_a_first_turn_that_fails_leaves_nothing(self, make: object) -> None:
        assert callable(make)
        replica = PlayedReplica()
        await replica.serve(make(0), kind=OutcomeKind.UPSTREAM_ERROR)
        assert replica.shared.pins == {}

    async def test_a_later_turn_that_fails_leaves_what_was(self) -> None:
        replica = PlayedReplica()
        await replica.serve(nameless())
        (key,) = replica.shared.pins
        await replica.serve(nameless(1), kind=OutcomeKind.CANCELLED)
        assert list(replica.shared.pins) == [key]
        decision = await replica.submit(nameless(1))
        replica.core.abort(decision.decision_id, replica.now_s)
        assert list(replica.shared.pins) == [key]

    @pytest.mark.parametrize("make", [turn, nameless])
    async def test_the_last_turn_closes_it(self, make: object) -> None:
        assert callable(make)
        replica = PlayedReplica()
        await replica.serve(make(0))
        await replica.serve(make(1, final=True))
        assert replica.shared.pins == {}

    async def test_one_that_gives_way_is_closed_as_it_was_last_seen(self) -> None:
        fleet = [worker("p0", Role.PREFILL), worker("d0", kv_total_blocks=300)]
        replica = PlayedReplica(fleet=fleet, evict_after_s=0.0, tool_wait_s=0.0)
        await replica.serve(turn(label="old", tokens=2000))
        (old,) = replica.shared.pins
        replica.now_s = 130.0
        await replica.serve(turn(label="new", tokens=2000))
        assert ("close", old) in replica.shared.told
        assert replica.shared.seen == [100.0]
        assert len(replica.shared.pins) == 1

    async def test_one_that_is_presumed_over_keeps_its_pin_with_next_to_nothing(self) -> None:
        shared = PlayedState()
        first, second = PlayedReplica(shared), PlayedReplica(shared)
        home = (await first.serve(turn())).decode_worker
        first.router.conversations.book.presume_over(first.now_s)
        first.core.tick(first.now_s)
        (pin,) = shared.pins.values()
        assert (pin.worker_id, pin.kv_tokens, pin.last_seen_s) == (home, LEAST_TOKENS, first.now_s)
        for number, replica in enumerate((second, first), start=1):
            went_on = await replica.serve(turn(number))
            assert (went_on.decode_worker, went_on.path, went_on.turn) == (home, Path.LOCAL, TurnKind.NEXT)

    async def test_what_is_not_kept_is_not_told(self) -> None:
        replica = PlayedReplica(mode=Mode.AFFINITY, pinning=Pinning.HASH)
        await replica.serve(turn())
        assert replica.shared.told == []

    async def test_all_that_has_a_home_is_told_again_on_demand(self) -> None:
        replica = PlayedReplica()
        await replica.serve(turn())
        await replica.serve(nameless(0, tokens=500))
        await replica.serve(nameless(1, tokens=500))
        gone = await replica.serve(turn(label="cold"))
        book = replica.router.conversations.book
        cold = book.get(next(one.conversation_id for one in book if one.turns == 1 and one.kv_tokens == 1010))
        assert cold is not None
        book.chill(cold)
        snapshot = replica.hearing.snapshot()
        assert snapshot == {key: pin for key, pin in replica.shared.pins.items() if key != key_of(cold)}
        assert len(snapshot) == 2
        assert gone.decode_worker in DECODERS


class TestHearing:
    @pytest.mark.parametrize("make", [turn, nameless])
    async def test_one_that_was_moved_is_at_its_new_home(self, make: object) -> None:
        assert callable(make)
        replica = PlayedReplica()
        for number in range(2):
            first = await replica.serve(make(number))
        other = next(worker_id for worker_id in DECODERS if worker_id != first.decode_worker)
        replica.hearing.moved(key_of(replica.known), pinned(other, kv_tokens=1500))
        assert (replica.known.worker_id, replica.known.kv_tokens, replica.known.turns) == (other, 1500, 3)
        assert (await replica.serve(make(2))).decode_worker == other

    async def test_one_that_is_told_to_be_where_it_is_stays(self) -> None:
        replica = PlayedReplica()
        first = await replica.serve(turn())
        told = len(replica.events)
        replica.hearing.moved(key_of(replica.known), pinned(first.decode_worker))
        assert len(replica.events) == told
        replica.router.conversations.book.chill(replica.known)
        replica.hearing.moved(key_of(replica.known), pinned(first.decode_worker))
        assert not replica.known.is_cold  # somebody has gone on with it there

    @pytest.mark.parametrize("make", [turn, nameless])
    async def test_one_that_is_closed_is_forgotten(self, make: object) -> None:
        assert callable(make)
        replica = PlayedReplica()
        await replica.serve(make(0))
        replica.hearing.moved(key_of(replica.known), None)
        assert len(replica.router.conversations.book) == 0

    async def test_news_of_what_is_not_known_or_has_another_key_now_is_none(self) -> None:
        replica = PlayedReplica()
        await replica.serve(nameless())
        old = key_of(replica.known)
        await replica.serve(nameless(1))
        replica.hearing.moved(old, None)
        replica.hearing.moved(old, pinned(DECODERS[0]))
        replica.hearing.moved(key_of(replica.known) ^ 1, pinned(DECODERS[0]))  # type: ignore[arg-type]  # an id is a number
        assert not any(isinstance(event, ConversationTold | ConversationClosed) for event in replica.events)
        assert len(replica.router.conversations.book) == 1

    def test_what_is_pinned_is_told_to_a_core_that_admits_by_it(self) -> None:
        replica = PlayedReplica()
        replica.hearing.occupancy({DECODERS[1]: 5000, DECODERS[0]: 100})
        tokens = ((DECODERS[0], 100), (DECODERS[1], 5000))
        assert replica.events == [KvPinned(at_s=100.0, until_s=105.0, tokens=tokens)]
        assert replica.router.conversations.book.booked_tokens(DECODERS[1], 105.0) == 5000
        for rules in ({"mode": Mode.AFFINITY, "pinning": Pinning.LOAD}, {"mode": Mode.OFF}):
            other = PlayedReplica(**rules)
            other.hearing.occupancy({DECODERS[1]: 5000})
            assert other.events == []
        by_model = PlayedReplica(mode=Mode.OFF, by_model=(("llama", Mode.CONSERVE),))
        by_model.hearing.occupancy({DECODERS[1]: 5000})
        assert len(by_model.events) == 1
