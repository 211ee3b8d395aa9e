import pytest

from gateway.api.explanation import explain
from gateway.core.conversation.facts import TurnKind
from tests.telemetry.telemetry_factories import a_decision, an_outcome


@pytest.mark.parametrize(
    ("turn", "words"),
    [
        (TurnKind.FIRST, "Conversation c1 begins with it."),
        (TurnKind.NEXT, "Conversation c1 goes on with it."),
        (TurnKind.MOVED, "Conversation c1 begins anew there, for its KV is not."),
    ],
)
def test_a_turn_says_what_it_is_to_its_conversation(turn: TurnKind, words: str) -> None:
    assert words in explain(a_decision(turn=turn, conversation="c1"), an_outcome())


def test_a_request_like_any_other_says_nothing_of_conversations() -> None:
    assert "onversation" not in explain(a_decision(), an_outcome())
    assert "where its conversation lives" in explain(a_decision(pinned=True), an_outcome())
