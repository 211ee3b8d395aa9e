"""Who asks the others, what is asked, and what becomes of the answer."""

import asyncio
import math

import pytest

from gateway.core.conversation.facts import TurnKind
from gateway.core.conversation.identity import ConversationId, identify
from gateway.core.conversation.pauses import LEAST_PAUSES
from gateway.core.conversation.rules import Mode, Pinning
from gateway.core.events import ConversationTold, KvPinned, WorkerDown
from gateway.core.types import Path, RequestFacts, WorkerId
from gateway.core.waiting import Wait
from tests.core.factories import facts
from tests.fleet.shared.played_shared import DECODERS, PlayedReplica, PlayedState, nameless, pinned, turn


def key_of(about: RequestFacts) -> ConversationId:
    """The key that a replica asks for that knows nothing."""
    assert about.conversation is not None
    identity = identify(about.conversation, PlayedReplica().router.conversations.book)
    assert identity is not None
    return identity.conversation_id


def lose(replica: PlayedReplica, worker_id: WorkerId) -> None:
    replica.core.observe(WorkerDown(at_s=replica.now_s, worker_id=worker_id))


class TestWhoAsks:
    @pytest.mark.parametrize(
        ("about", "rules"),
        [
            (facts(tokens=10), {}),
            (turn(), {"mode": Mode.OFF}),
            (turn(), {"mode": Mode.AFFINITY, "pinning": Pinning.HASH}),
            (nameless(), {}),
        ],
        ids=["no conversation", "off", "by hash", "a nameless first turn"],
    )
    def test_what_nobody_else_can_know_or_all_agree_on_is_not_asked(
        self, about: RequestFacts, rules: dict[str, object]
    ) -> None:
        assert PlayedReplica(**rules).before(about) is None

    @pytest.mark.parametrize("make", [turn, nameless])
    async def test_a_conversation_at_home_asks_nobody(self, make: object) -> None:
        assert callable(make)
        replica = PlayedReplica()
        await replica.serve(make(0))
        asked = len(replica.shared.asked)
        for number in range(1, 4):
            assert replica.before(make(number)) is None
            await replica.serve(make(number))
        assert replica.before(make(3)) is None  # an answer that is asked for again
        assert replica.before(make(2)) is None  # a fork from an older end
        assert len(replica.shared.asked) == asked == (make is turn)

    async def test_no_worker_no_question(self) -> None:
        replica = PlayedReplica()
        for worker_id in DECODERS:
            lose(replica, worker_id)
        wanted = replica.before(turn())
        assert wanted is not None
        await wanted
        assert replica.shared.asked == []


class TestUnknownHere:
    @pytest.mark.parametrize("home", DECODERS)
    @pytest.mark.parametrize("about", [turn(), turn(3), nameless(3)], ids=["first", "later", "nameless"])
    async def test_it_goes_where_others_have_left_it(self, home: WorkerId, about: RequestFacts) -> None:
        replica = PlayedReplica(PlayedState(pins={key_of(about): pinned(home)}))
        decision = await replica.serve(about)
        assert (decision.decode_worker, decision.path, decision.turn) == (home, Path.LOCAL, TurnKind.NEXT)
        assert (replica.known.turns, replica.known.kv_tokens) == (4, 1010)

    @pytest.mark.parametrize("about", [turn(), turn(3), nameless(3)], ids=["first", "later", "nameless"])
    async def test_where_nobody_knows_it_begins_on_the_worker_that_was_said(self, about: RequestFacts) -> None:
        shared = PlayedState()
        shared.held.clear()
        replica = PlayedReplica(shared)
        waiting = asyncio.ensure_future(replica.submit(about))
        await asyncio.sleep(0)
        ((_, key, said),) = shared.asked
        # Meanwhile others fill that worker, so that by itself another one would be chosen.
        replica.core.observe(KvPinned(at_s=100.0, until_s=200.0, tokens=((said, 9000),)))
        shared.held.set()
        decision = await waiting
        assert key == key_of(about)
        assert (decision.decode_worker, decision.path) == (said, Path.REMOTE)
        assert decision.turn is (TurnKind.FIRST if about.request_id == "a/0" else TurnKind.MOVED)
        assert shared.pins[key].worker_id == said

    async def test_first_calls_at_once_at_several_replicas_land_together(self) -> None:
        shared = PlayedState()
        replicas = [PlayedReplica(shared) for _ in range(3)]
        shared.held.clear()
        calls = [asyncio.ensure_future(replica.submit(turn())) for replica in replicas for _ in range(2)]
        await asyncio.sleep(0)
        assert len(shared.asked) == len(calls)
        shared.held.set()
        decisions = await asyncio.gather(*calls)
        assert len({decision.decode_worker for decision in decisions}) == 1
        assert [decision.turn for decision in decisions].count(TurnKind.FIRST) == 1
        assert [decision.path for decision in decisions].count(Path.REMOTE) == 1

    async def test_what_is_promised_is_what_will_be_held(self) -> None:
        for rules, promised in (({}, 2012), ({"mode": Mode.AFFINITY, "pinning": Pinning.LOAD}, 1000)):
            replica = PlayedReplica(**rules)
            wanted = replica.before(turn())
            assert wanted is not None
            await wanted
            assert [pin.kv_tokens for pin in replica.shared.pins.values()] == [promised]

    async def test_one_for_whom_there_is_no_room_claims_no_place(self) -> None:
        replica = PlayedReplica()
        full = tuple((worker_id, 13_000) for worker_id in DECODERS)
        replica.core.observe(KvPinned(at_s=100.0, until_s=200.0, tokens=full))
        wanted = replica.before(turn())
        assert wanted is not None
        await wanted
        assert replica.shared.pins == {}
        assert isinstance(replica.core.submit(turn(), 100.0), Wait)
        replica.now_s = 200.5
        assert replica.shared.pins == {}
        replica.core.expect(replica.router.waiting.first("llama").ticket, lambda _: None)  # type: ignore[union-attr]
        replica.core.tick(replica.now_s)
        assert [pin.kv_tokens for pin in replica.shared.pins.values()] == [2012]  # now the others know

    async def test_turns_of_one_that_others_serve_do_not_wait_for_room(self) -> None:
        replica = PlayedReplica(PlayedState(pins={key_of(turn(2)): pinned(DECODERS[1])}))
        full = tuple((worker_id, 13_000) for worker_id in DECODERS)
        replica.core.observe(KvPinned(at_s=100.0, until_s=200.0, tokens=full))
        assert (await replica.submit(turn(2))).decode_worker == DECODERS[1]


class TestPauses:
    """What is usual is learned from turns, and being told is none."""

    async def test_a_turn_that_others_served_last_has_paused_since_then(self) -> None:
        shared = PlayedState()
        first, second = PlayedReplica(shared), PlayedReplica(shared)
        labels = [f"talk-{number}" for number in range(LEAST_PAUSES)]
        for label in labels:
            await first.serve(turn(label=label, tokens=10))
        assert first.router.conversations.book.pauses.usual_s() == math.inf  # nobody has come back
        second.now_s += 20.0
        for label in labels:
            await second.serve(turn(1, label, tokens=10))
        assert 20.0 <= second.router.conversations.book.pauses.usual_s() < 24.0

    async def test_one_that_was_presumed_over_here_and_went_on_elsewhere_has_paused_since_then(self) -> None:
        shared = PlayedState()
        first, second = PlayedReplica(shared), PlayedReplica(shared)
        for number in range(LEAST_PAUSES):
            label = f"talk-{number}"
            await first.serve(turn(label=label, tokens=10))
            first.now_s = second.now_s = first.now_s + 5.0
            await second.serve(turn(1, label, tokens=10))
            first.now_s = second.now_s = first.now_s + 5.0
            first.router.conversations.book.presume_over(first.now_s)
            await first.serve(turn(2, label, tokens=10))
        assert 5.0 <= first.router.conversations.book.pauses.usual_s() < 6.0


class TestGoneOnElsewhere:
    async def test_a_new_end_is_asked_for_and_the_old_key_closed(self) -> None:
        replica = PlayedReplica()
        first = await replica.serve(nameless())
        (left,) = replica.shared.pins
        other = next(worker_id for worker_id in DECODERS if worker_id != first.decode_worker)
        newest = key_of(nameless(2))
        replica.shared.pins[newest] = pinned(other)
        decision = await replica.serve(nameless(2))
        assert decision.decode_worker == other
        assert replica.shared.asked == [("claim", newest, first.decode_worker)]
        assert ("close", left) in replica.shared.told
        assert list(replica.shared.pins) == [key_of(nameless(3))]

    async def test_where_nobody_knows_the_new_end_it_stays_at_home(self) -> None:
        replica = PlayedReplica()
        first = await replica.serve(nameless())
        decision = await replica.serve(nameless(2))
        assert (decision.decode_worker, decision.turn) == (first.decode_worker, TurnKind.NEXT)
        assert list(replica.shared.pins) == [key_of(nameless(3))]

    async def test_where_nobody_can_be_asked_it_stays_at_home(self) -> None:
        replica = PlayedReplica(PlayedState(is_down=True))
        first = await replica.serve(nameless())
        assert (await replica.serve(nameless(2))).decode_worker == first.decode_worker


class TestLost:
    @pytest.mark.parametrize("make", [turn, nameless])
    async def test_a_lost_home_is_left_for_the_worker_that_was_said(self, make: object) -> None:
        assert callable(make)
        replica = PlayedReplica()
        first = await replica.serve(make(0))
        key = next(iter(replica.shared.pins))
        lose(replica, first.decode_worker)
        moved = await replica.serve(make(1))
        assert replica.shared.asked[-1] == ("move", key, moved.decode_worker)
        assert (moved.turn, moved.path) == (TurnKind.MOVED, Path.REMOTE)
        assert replica.known.rehomes == 1
        assert replica.before(make(2)) is None

    async def test_another_replica_may_have_moved_it_already(self) -> None:
        replica = PlayedReplica()
        first = await replica.serve(turn())
        others = [worker_id for worker_id in DECODERS if worker_id != first.decode_worker]
        for other in others:
            replica = PlayedReplica()
            await replica.serve(turn())
            (key,) = replica.shared.pins
            replica.shared.pins[key] = pinned(other)
            lose(replica, first.decode_worker)
            moved = await replica.serve(turn(1))
            assert (moved.decode_worker, moved.turn, moved.path) == (other, TurnKind.NEXT, Path.LOCAL)

    async def test_a_pin_on_a_worker_that_is_lost_here_is_moved(self) -> None:
        gone = DECODERS[0]
        replica = PlayedReplica(PlayedState(pins={key_of(turn(1)): pinned(gone)}))
        lose(replica, gone)
        moved = await replica.serve(turn(1))
        assert [name for name, _, _ in replica.shared.asked] == ["claim", "move"]
        assert moved.decode_worker != gone
        assert moved.turn is TurnKind.MOVED

    async def test_one_that_gave_way_asks_whether_others_went_on_with_it(self) -> None:
        replica = PlayedReplica()
        first = await replica.serve(turn())
        replica.router.conversations.book.chill(replica.known)
        other = next(worker_id for worker_id in DECODERS if worker_id != first.decode_worker)
        (key,) = replica.shared.pins
        replica.shared.pins[key] = pinned(other)
        assert (await replica.serve(turn(1))).decode_worker == other
        assert replica.shared.asked[-1][0] == "claim"


class TestDown:
    def later(self, name: str | None) -> list[RequestFacts]:
        return [turn(number, name) for number in range(2, 6)]

    @pytest.mark.parametrize("name", ["a", None])
    async def test_replicas_that_do_not_know_a_later_turn_send_it_to_one_worker(self, name: str | None) -> None:
        replicas = [PlayedReplica(PlayedState(is_down=True)) for _ in range(4)]
        chosen = [await replica.serve(about) for replica, about in zip(replicas, self.later(name), strict=True)]
        assert len({decision.decode_worker for decision in chosen}) == 1
        assert {decision.turn for decision in chosen} == {TurnKind.MOVED}

    async def test_conversations_are_spread_over_all_workers(self) -> None:
        replica = PlayedReplica(PlayedState(is_down=True), mode=Mode.AFFINITY, pinning=Pinning.LOAD)
        homes = {(await replica.serve(turn(1, f"c{number}"))).decode_worker for number in range(30)}
        assert homes == set(DECODERS)

    async def test_a_first_turn_and_what_is_known_go_by_what_is_known(self) -> None:
        replica = PlayedReplica(PlayedState(is_down=True))
        first = await replica.serve(turn())
        assert (await replica.serve(turn(1))).decode_worker == first.decode_worker
        assert not any(isinstance(event, ConversationTold) for event in replica.events)
        lose(replica, first.decode_worker)
        assert (await replica.serve(turn(2))).turn is TurnKind.MOVED
