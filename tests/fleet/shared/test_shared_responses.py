"""Responses that one replica has seen made, and another is asked for."""

from typing import Any

import pytest

from gateway.core.conversation.facts import ConversationFacts, TurnKind
from gateway.core.conversation.identity import response_end
from gateway.core.conversation.rules import Mode, Pinning
from gateway.core.conversation.shared_key import key_of
from gateway.core.events import ConversationTold, ResponseTold, WorkerDown
from gateway.core.hashing import hash64
from gateway.core.types import Endpoint, RequestFacts
from gateway.fleet.shared.pins import Pin
from tests.core.factories import facts
from tests.fleet.shared.played_shared import TENANT, PlayedReplica, PlayedState

KEPT: list[dict[str, Any]] = [{"mode": Mode.CONSERVE}, {"mode": Mode.AFFINITY, "pinning": Pinning.LOAD}]
NOT_KEPT: list[dict[str, Any]] = [{"mode": Mode.OFF}, {"mode": Mode.AFFINITY, "pinning": Pinning.HASH}]


def ask(name: str, after: str | None = None, *, tenant: int = TENANT, label: str | None = None) -> RequestFacts:
    said = ConversationFacts(response_id=after, tenant=tenant, label=label, turns=(hash64(name),))
    return facts(name, tokens=1000, endpoint=Endpoint.RESPONSES, conversation=said, max_output_tokens=10)


def pair(**rules: Any) -> tuple[PlayedReplica, PlayedReplica]:
    shared = PlayedState()
    return PlayedReplica(shared, **rules), PlayedReplica(shared, **rules)


def told_of(replica: PlayedReplica) -> list[Any]:
    return [event for event in replica.events if isinstance(event, ResponseTold | ConversationTold)]


@pytest.mark.parametrize("rules", [*KEPT, *NOT_KEPT], ids=str)
class TestEveryMode:
    async def test_a_chain_goes_on_at_any_replica(self, rules: dict[str, Any]) -> None:
        both = pair(**rules)
        for number in range(9):
            first = await both[0].serve(ask(f"a{number}"), response_id=f"r{number}.0")
            for step in range(1, 4):
                about = ask(f"{number}.{step}", f"r{number}.{step - 1}")
                went = await both[step % 2].serve(about, response_id=f"r{number}.{step}")
                assert (went.decode_worker, went.pinned) == (first.decode_worker, True)

    async def test_a_known_response_asks_nobody(self, rules: dict[str, Any]) -> None:
        one, other = pair(**rules)
        await one.serve(ask("a"), response_id="r0")
        await one.serve(ask("b", "r0"), response_id="r1")
        await other.serve(ask("c", "r1"), response_id="r2")
        await other.serve(ask("d", "r2"))
        assert [kind for kind, *_ in one.shared.asked].count("find") == 1

    async def test_anothers_is_not_found(self, rules: dict[str, Any]) -> None:
        one, other = pair(**rules)
        await one.serve(ask("a"), response_id="r0")
        await other.sharing.find("r0", TENANT + 1)
        assert other.router.conversations.response_home("r0", TENANT + 1) is None
        await other.sharing.find("r0", TENANT)
        assert other.router.conversations.response_home("r0", TENANT) is not None

    async def test_without_the_server_each_goes_by_itself(self, rules: dict[str, Any]) -> None:
        one, other = pair(**rules)
        one.shared.is_down = True
        await one.serve(ask("a"), response_id="r0")
        await other.serve(ask("b", "r0"))
        assert told_of(other) == []
        assert other.router.conversations.response_home("r0", TENANT) is None

    async def test_a_worker_that_is_not_here_keeps_nothing(self, rules: dict[str, Any]) -> None:
        one, other = pair(**rules)
        decision = await one.serve(ask("a"), response_id="r0")
        other.core.observe(WorkerDown(at_s=other.now_s, worker_id=decision.decode_worker))
        await other.sharing.find("r0", TENANT)
        assert told_of(other) == []


@pytest.mark.parametrize("label", [None, "x=a"])
@pytest.mark.parametrize("rules", KEPT, ids=str)
class TestConversations:
    async def test_a_chain_is_one_conversation_wherever_its_turns_come(
        self, rules: dict[str, Any], label: str | None
    ) -> None:
        both = pair(**rules)
        first = await both[0].serve(ask("a", label=label), response_id="r0")
        key = key_of(both[0].known)
        for step in range(1, 6):
            went = await both[step % 2].serve(ask(f"b{step}", f"r{step - 1}", label=label), response_id=f"r{step}")
            assert (went.decode_worker, went.turn) == (first.decode_worker, TurnKind.NEXT)
        assert [key_of(replica.known) for replica in both] == [key, key]
        assert list(both[0].shared.pins) == [key]
        assert both[1].known.turns >= 3

    async def test_a_response_of_a_conversation_that_is_known_moves_nothing(
        self, rules: dict[str, Any], label: str | None
    ) -> None:
        one, other = pair(**rules)
        await one.serve(ask("a", label=label), response_id="r0")
        await other.serve(ask("b", "r0", label=label), response_id="r1")
        await one.serve(ask("c", "r1", label=label), response_id="r2")
        before = len(told_of(other))
        await other.sharing.find("r2", TENANT)
        (event,) = told_of(other)[before:]
        assert isinstance(event, ResponseTold)
        assert event.conversation_id == other.known.conversation_id


@pytest.mark.parametrize("rules", NOT_KEPT, ids=str)
async def test_where_no_book_is_kept_nothing_is_said_of_a_conversation(rules: dict[str, Any]) -> None:
    one, other = pair(**rules)
    decision = await one.serve(ask("a"), response_id="r0")
    end = response_end("r0", TENANT)
    at_s = one.now_s
    assert one.shared.responses == {end: Pin(worker_id=decision.decode_worker, kv_tokens=0, turns=0, last_seen_s=at_s)}
    await other.sharing.find("r0", TENANT)
    assert told_of(other) == [ResponseTold(at_s=at_s, end=end, worker_id=decision.decode_worker, conversation_id=None)]
    assert not len(other.router.conversations.book)


async def test_what_was_told_is_not_told_on() -> None:
    one, other = pair()
    await one.serve(ask("a"), response_id="r0")
    await other.sharing.find("r0", TENANT)
    other.shared.responses.clear()
    await other.serve(ask("z"))
    assert other.shared.responses == {}


async def test_a_response_that_was_forgotten_before_it_was_told_is_not_told() -> None:
    replica = PlayedReplica(capacity=1)
    decisions = [await replica.submit(ask(name)) for name in "ab"]
    homes = replica.router.conversations.responses
    for number, decision in enumerate(decisions):
        homes.made(number, decision.decode_worker)
    replica.end(decisions[0])
    assert list(replica.shared.responses) == [1]
    assert not homes.new


async def test_a_turn_whose_conversation_has_lost_its_home_asks_where_it_goes_on() -> None:
    one, other = pair()
    decision = await one.serve(ask("a"), response_id="r0")
    await other.sharing.find("r0", TENANT)
    other.core.observe(WorkerDown(at_s=other.now_s, worker_id=decision.decode_worker))
    went = await other.submit(ask("b", "r0"))
    assert went.decode_worker != decision.decode_worker
    assert one.shared.pins[key_of(one.known)].worker_id == went.decode_worker
