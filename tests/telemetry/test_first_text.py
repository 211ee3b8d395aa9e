from dataclasses import replace

from gateway.core.conversation.facts import TurnKind
from gateway.core.types import Decision, OutcomeKind
from gateway.telemetry.first_text import FirstTexts
from tests.core.factories import decision
from tests.telemetry.telemetry_factories import an_outcome


def turn(name: str = "a", kind: TurnKind = TurnKind.NEXT) -> Decision:
    return replace(decision("any"), conversation=name, turn=kind)


FIRST = turn(kind=TurnKind.FIRST)
TOOK_2_S = replace(an_outcome(), duration_s=2.0)


def test_a_first_turn_that_shows_text_is_all_that_is_waited_for() -> None:
    assert FirstTexts().ended(FIRST, TOOK_2_S, 0.5) == 0.5


def test_turns_that_call_tools_alone_are_waited_for_and_the_pauses_between_them_are_not() -> None:
    texts = FirstTexts()
    assert texts.ended(FIRST, TOOK_2_S, None) is None
    assert texts.ended(turn(kind=TurnKind.MOVED), TOOK_2_S, None) is None
    assert texts.ended(turn(), TOOK_2_S, 0.5) == 4.5
    assert texts.ended(turn(), TOOK_2_S, 0.5) is None  # it has shown text before
    assert len(texts) == 0


def test_a_conversation_of_which_the_beginning_was_not_seen_is_not_counted() -> None:
    assert FirstTexts().ended(turn(), TOOK_2_S, 0.5) is None
    assert FirstTexts().ended(replace(FIRST, conversation=None), TOOK_2_S, 0.5) is None


def test_a_failed_turn_was_waited_for_and_one_whose_client_left_ends_the_wait() -> None:
    texts = FirstTexts()
    texts.ended(FIRST, replace(TOOK_2_S, kind=OutcomeKind.UPSTREAM_ERROR), None)
    assert texts.ended(turn(), TOOK_2_S, 0.5) == 2.5
    texts.ended(FIRST, replace(TOOK_2_S, kind=OutcomeKind.CANCELLED), None)
    assert texts.ended(turn(), TOOK_2_S, 0.5) is None


def test_only_so_many_are_followed() -> None:
    texts = FirstTexts(most=2)
    for name in "abc":
        texts.ended(turn(name, TurnKind.FIRST), TOOK_2_S, None)
    assert len(texts) == 2
    assert texts.ended(turn("a"), TOOK_2_S, 0.5) is None
    assert texts.ended(turn("c"), TOOK_2_S, 0.5) == 2.5
