"""How long the users of conversations wait for the first text that they see.

The rule of this module: a conversation is followed from its first turn to its first text, then forgotten; what it
pauses between turns, while its tools run, is no wait. Only streams are looked into, so a conversation whose first text
comes in a whole answer is not counted.
Source: time to first effective token, ConServe (arXiv 2606.01839) [F].
"""

from collections import OrderedDict

from gateway.core.conversation.facts import TurnKind
from gateway.core.types import Decision, Outcome, OutcomeKind

MOST_FOLLOWED = 100_000
"""Conversations that have shown no text yet; beyond it the ones seen longest ago are forgotten."""


class FirstTexts:
    """Follows conversations to their first text."""

    def __init__(self, most: int = MOST_FOLLOWED) -> None:
        self._most = most
        self._waited: OrderedDict[str, float] = OrderedDict()
        """What the turns so far took, by conversation, in seconds."""

    def __len__(self) -> int:
        return len(self._waited)

    def ended(self, decision: Decision, outcome: Outcome, first_text_s: float | None) -> float | None:
        """A turn has ended.

        Args:
            decision: says of which conversation.
            outcome: how long it took.
            first_text_s: from its arrival to its first text; None where it showed none.

        Returns:
            The seconds that the user has waited, where this was the first text.
        """
        name = decision.conversation
        if name is None:
            return None
        before_s = 0.0 if decision.turn is TurnKind.FIRST else self._waited.pop(name, None)
        if before_s is None:
            return None
        if first_text_s is not None:
            self._waited.pop(name, None)
            return before_s + first_text_s
        # A failed turn is asked for again; its time was waited too.
        if outcome.kind is not OutcomeKind.CANCELLED:
            self._waited[name] = before_s + outcome.duration_s
            if len(self._waited) > self._most:
                self._waited.popitem(last=False)
        return None
