"""Keys: the one that is left is the one that is asked for, whoever reads the request."""

from gateway.core.conversation.book import Conversation, ConversationBook
from gateway.core.conversation.facts import ConversationFacts
from gateway.core.conversation.identity import ConversationId, Identity, identify, tip_of
from gateway.core.conversation.shared_key import end_asked, end_of, key_asked, key_left, key_of, key_of_beginning
from gateway.core.types import WorkerId

TENANT = 77


def said(*turns: int, label: str | None = None) -> ConversationFacts:
    return ConversationFacts(label=label, turns=turns, tenant=TENANT)


def identity_of(facts: ConversationFacts) -> Identity:
    """At a replica that knows nothing."""
    found = identify(facts, ConversationBook(1))
    assert found is not None
    return found


def asked(facts: ConversationFacts) -> ConversationId:
    return key_asked(facts, identity_of(facts))


def after(facts: ConversationFacts) -> ConversationId:
    """The key of a conversation whose turn this was, once it is answered."""
    identity = identity_of(facts)
    return key_of(
        Conversation(
            conversation_id=identity.conversation_id,
            label_key=identity.label_key,
            worker_id=WorkerId("d0"),
            kv_tokens=1,
            last_seen_s=0.0,
            end=tip_of(facts),
        )
    )


def test_without_a_name_a_turn_leaves_the_key_that_the_next_one_asks_for() -> None:
    turns = (11, 22, 33, 44)
    for length in range(1, len(turns)):
        assert after(said(*turns[:length])) == asked(said(*turns[: length + 1])) == key_left(said(*turns[:length]))


def test_the_key_that_is_asked_for_is_the_id_at_a_replica_that_knows_nothing() -> None:
    for facts in (said(11), said(11, 22), said(11, 22, 33), said(11, 22, label="a"), said(label="a")):
        assert asked(facts) == identity_of(facts).conversation_id


def test_with_a_name_the_key_stays() -> None:
    keys = {key for length in range(1, 4) for key in (asked(named(length)), after(named(length)))}
    assert len(keys) == 1
    assert key_left(named(2)) is None


def named(length: int) -> ConversationFacts:
    return said(*range(1, length + 1), label="x-session-id=a")


def test_the_end_is_read_from_a_key_again() -> None:
    facts = said(11, 2**64 - 1, 33)
    assert end_of(asked(facts)) == end_asked(facts) == TENANT ^ (2**64 - 1)


def test_what_a_conversation_began_with_is_the_same_over_all_its_turns() -> None:
    for label in (None, "a"):
        beginnings = {
            key_of_beginning(facts, identity_of(facts))
            for facts in (said(11, label=label), said(11, 22, label=label), said(11, 22, 33, label=label))
        }
        assert len(beginnings) == 1
    other = said(12, 22)
    assert key_of_beginning(other, identity_of(other)) != key_of_beginning(said(11, 22), identity_of(said(11, 22)))


def test_tenants_share_no_key() -> None:
    theirs = ConversationFacts(turns=(11, 22), tenant=TENANT + 1)
    assert asked(theirs) != asked(said(11, 22))


def test_what_goes_on_from_a_kept_response_leaves_no_history_behind() -> None:
    assert key_left(ConversationFacts(response_id="resp_1", turns=(11,), tenant=TENANT)) is None
