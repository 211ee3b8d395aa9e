"""What may change while the gateway runs, for those who answer requests.

The rule of this module: one holder, read anew for every request; a reload swaps its values between two requests, all
at once, so that no request sees half of a change.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Self

from gateway.api.auth import Keyring
from gateway.settings import Settings
from gateway.wire.conversation_names import ConversationNames


@dataclass(slots=True, kw_only=True)
class Live:
    """The settings in force that requests read, and whether the gateway still wants any."""

    aliases: Mapping[str, str] = field(default_factory=dict)
    """Model names that clients may use, and what they stand for."""
    upstream_authorization: bytes | None = None
    """The Authorization header for workers; None passes the client's on where it is not the gateway's own key."""
    keyring: Keyring = field(default_factory=Keyring)
    conversation_names: ConversationNames | None = None
    """None where nobody asks which conversation a request is a turn of."""
    default_model: Callable[[], str | None] = lambda: None
    """What a request without a model means; None where that is not clear."""
    draining: bool = False
    """The gateway is about to stop: it answers on, and says that it is not ready."""

    @classmethod
    def of(cls, settings: Settings, default_model: Callable[[], str | None]) -> Self:
        """The holder for these settings."""
        live = cls(default_model=default_model)
        live.follow(settings)
        return live

    def follow(self, settings: Settings) -> None:
        """Take over the values of these settings."""
        api_key = settings.upstream.api_key
        self.aliases = MappingProxyType(dict(settings.aliases))
        self.upstream_authorization = None if api_key is None else f"Bearer {api_key.get_secret_value()}".encode()
        self.keyring = Keyring(settings.auth.keys)
        self.conversation_names = settings.routing.conversation.names
