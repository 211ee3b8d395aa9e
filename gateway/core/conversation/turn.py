"""A request as a turn of a conversation, for as long as it is routed.

The rule of this module: it says what is known and changes nothing.
"""

from gateway.core.conversation.book import Conversation, ConversationBook
from gateway.core.conversation.facts import TurnKind
from gateway.core.conversation.identity import Identity, identify
from gateway.core.conversation.rules import ConversationRules, Mode, Pinning
from gateway.core.record import record
from gateway.core.types import RequestFacts, WorkerId


@record
class Turn:
    """Which conversation, what is known of it, and how it is held."""

    identity: Identity
    known: Conversation | None
    """None where it is new, or was forgotten."""
    mode: Mode
    is_kept: bool
    """Whether a book is kept of it; else its name alone says where it lives."""

    @property
    def is_at_home(self) -> bool:
        """Whether some worker holds its history."""
        return self._home() is not None

    @property
    def is_new(self) -> bool:
        """Whether the conversation begins: nobody has let it in before."""
        known = self.known
        return self.identity.is_first and (known is None or not (known.is_cold or known.kv_tokens))

    def kind_on(self, worker_id: WorkerId, *, is_local: bool) -> TurnKind:
        """What the turn is where it goes to this worker."""
        if self.goes_on_at(worker_id, is_local=is_local):
            return TurnKind.NEXT
        if self.identity.is_first and not self.is_at_home:
            return TurnKind.FIRST
        return TurnKind.MOVED if self.is_kept else TurnKind.NEXT

    def goes_on_at(self, worker_id: WorkerId, *, is_local: bool) -> bool:
        """Whether it is this worker where it goes on; one that was given up does where its KV is there still."""
        known = self.known
        if known is None or known.worker_id != worker_id:
            return False
        return self.lives_on(worker_id) or (known.is_cold and is_local and not self.identity.is_first)

    def lives_on(self, worker_id: WorkerId) -> bool:
        """Whether it is this worker."""
        return self._home() == worker_id

    def _home(self) -> WorkerId | None:
        """The worker that holds its history; not one where it shall only begin."""
        known = self.known
        return None if known is None or known.is_cold or not known.kv_tokens else known.worker_id


def turn_of(facts: RequestFacts, rules: ConversationRules, book: ConversationBook) -> Turn | None:
    """None where the request is one like any other."""
    if facts.conversation is None:
        return None
    mode = rules.mode_of(facts.model)
    if mode is Mode.OFF:
        return None
    identity = identify(facts.conversation, book)
    if identity is None:
        return None
    is_kept = mode is Mode.CONSERVE or rules.pinning is Pinning.LOAD
    if not is_kept and identity.label_key is None:
        return None  # nobody would know it again
    # The first words alone do not tell one conversation from another.
    is_anyones = identity.is_first and identity.label_key is None
    known = None if is_anyones else book.get(identity.conversation_id)
    return Turn(identity, known, mode, is_kept)
