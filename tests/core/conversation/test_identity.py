from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from gateway.core.conversation.facts import ConversationFacts
from gateway.core.conversation.identity import ConversationId, Identity, identify

HASHES = st.integers(0, 2**64 - 1)


@dataclass
class Memory:
    """What a book would remember."""

    tips: dict[int, ConversationId] = field(default_factory=dict)
    labels: dict[int, ConversationId] = field(default_factory=dict)
    ids: set[ConversationId] = field(default_factory=set)

    def knows(self, conversation_id: ConversationId) -> bool:
        return conversation_id in self.ids

    def remember(self, identity: Identity, *tips: int) -> None:
        self.ids.add(identity.conversation_id)
        if identity.label_key is not None:
            self.labels[identity.label_key] = identity.conversation_id
        for tip in tips:
            self.tips[tip] = identity.conversation_id


def of(memory: Memory | None = None, /, *turns: int, label: str | None = None, tenant: int = 0) -> Identity:
    found = identify(ConversationFacts(label=label, tenant=tenant, turns=turns), memory or Memory())
    assert found is not None
    return found


def test_a_request_that_says_nothing_is_no_turn() -> None:
    assert identify(ConversationFacts(), Memory()) is None


def test_turns_under_a_label_are_one_conversation_at_every_replica() -> None:
    first, second = of(None, 7, label="x=a"), of(Memory(), 7, 8, 9, label="x=a")
    assert first.conversation_id == second.conversation_id
    assert (first.is_first, second.is_first) == (True, False)


def test_labels_tenants_and_beginnings_tell_conversations_apart() -> None:
    ids = {
        of(None, 7, label="x=a").conversation_id,
        of(None, 7, label="x=b").conversation_id,
        of(None, 7, label="y=a").conversation_id,
        of(None, 7, label="x=a", tenant=5).conversation_id,
        of(None, 8, label="x=a").conversation_id,
        of(None, 7).conversation_id,
        of(None, 7, tenant=5).conversation_id,
    }
    assert len(ids) == 7


def test_a_label_alone_is_enough() -> None:
    assert of(None, label="x=a").conversation_id == of(None, label="x=a").conversation_id


def test_a_sub_agent_under_its_callers_label_is_a_conversation_of_its_own() -> None:
    memory = Memory()
    memory.remember(of(memory, 7, label="x=a"))
    agent = of(memory, 30, label="x=a")
    assert agent.conversation_id != of(memory, 7, 8, label="x=a").conversation_id
    memory.remember(agent)
    assert of(memory, 30, 31, label="x=a").conversation_id == agent.conversation_id
    assert of(memory, 7, 8, 9, label="x=a").conversation_id == of(memory, 7, label="x=a").conversation_id


def test_a_history_that_was_summed_up_stays_with_its_label() -> None:
    memory = Memory()
    first = of(memory, 7, label="x=a")
    assert of(memory, 50, 51, label="x=a").conversation_id != first.conversation_id  # nobody knows the label yet
    memory.remember(first)
    assert of(memory, 50, 51, label="x=a").conversation_id == first.conversation_id


def test_a_history_that_is_sent_again_is_recognised_by_its_longest_known_part() -> None:
    memory = Memory()
    one, other = of(memory, 7), ConversationId(99)
    memory.remember(one, 7)
    second = of(memory, 7, 8)
    assert (second.conversation_id, second.is_first, second.label_key) == (one.conversation_id, False, None)
    memory.tips[8] = other
    assert of(memory, 7, 8, 9).conversation_id == other
    assert of(memory, 7, 88).conversation_id == one.conversation_id  # a fork from the first turn


def test_another_tenant_with_the_same_history_has_a_conversation_of_its_own() -> None:
    memory = Memory()
    memory.remember(of(memory, 7, tenant=5), 7 ^ 5)
    assert of(memory, 7, 8, tenant=5).conversation_id == of(memory, 7, tenant=5).conversation_id
    assert of(memory, 7, 8, tenant=6).conversation_id != of(memory, 7, tenant=5).conversation_id


def test_a_first_turn_without_a_label_goes_by_no_history() -> None:
    memory = Memory()
    memory.tips[7] = ConversationId(99)
    assert of(memory, 7).conversation_id != 99


def test_replicas_that_have_not_seen_the_last_turn_agree_on_its_name() -> None:
    assert of(None, 7, 8, 9).conversation_id == of(Memory(), 7, 8, 10).conversation_id


@given(st.lists(HASHES, max_size=6), st.none() | st.text(max_size=8), HASHES)
def test_an_identity_is_64_bits_and_the_same_whenever_it_is_asked_for(
    turns: list[int], label: str | None, tenant: int
) -> None:
    facts = ConversationFacts(label=label, tenant=tenant, turns=tuple(turns))
    found = identify(facts, Memory())
    assert found == identify(facts, Memory())
    assert found is None or 0 <= found.conversation_id < 2**64
