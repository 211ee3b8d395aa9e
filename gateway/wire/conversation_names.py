"""What a request says of its conversation: the names that stand in its headers and body.

The rule of this module: a name is the client's own word and nobody's to refuse; what is no text is as if it were not
there. A label carries where its value stood, so that equal values of different names do not meet.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Literal

import msgspec
from xxhash import xxh3_64_hexdigest, xxh3_64_intdigest

from gateway.core.conversation.facts import ConversationFacts
from gateway.core.record import record

BodyField = Literal["prompt_cache_key", "user", "metadata.user_id"]
"""The first two stand in OpenAI's requests, the last one in Anthropic's."""

Fields = Mapping[str, msgspec.Raw]
"""Top-level fields of a body as raw JSON, by name; an absent one may be empty."""

NO_FIELDS: Fields = MappingProxyType({})
MAX_VALUE_CHARS = 256
_YES = frozenset({"true", "1"})

_decode_text = msgspec.json.Decoder(str).decode
_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationNames:
    """Headers (in any case) and body fields that may name a conversation; of each kind the first that is there counts.

    Without any `headers` and `fields` no request has a label, nor a parent.

    Raises:
        ValueError: a header's name is not ASCII.
    """

    headers: tuple[str, ...] = (
        "x-session-id",
        "x-conversation-id",
        "x-dynamo-session-id",
        "x-claude-code-session-id",
        "session-id",
        "session_id",
        "x-opencode-session",
    )
    fields: tuple[BodyField, ...] = ("prompt_cache_key", "user", "metadata.user_id")
    """They are asked where no header names it."""
    parent_headers: tuple[str, ...] = ("x-dynamo-parent-session-id", "x-parent-session-id")
    """They name the conversation that called, as `headers` do in its own requests."""
    agent_headers: tuple[str, ...] = ("x-claude-code-agent-id",)
    """They make a sub-agent's conversation of the one that the other names stand for, which is its parent then."""
    parent_agent_headers: tuple[str, ...] = ("x-claude-code-parent-agent-id",)
    """They name the sub-agent that called a sub-agent."""
    final_headers: tuple[str, ...] = ("x-dynamo-session-final",)
    """`true` or `1` in one of them says that no turn will follow."""

    def __post_init__(self) -> None:
        headers = (self.headers, self.parent_headers, self.agent_headers, self.parent_agent_headers, self.final_headers)
        for name in (name for names in headers for name in names):
            if not name.isascii():
                raise ValueError(f"{name!r} is no name of a header: it is not ASCII")


NAMELESS = ConversationNames(
    headers=(), fields=(), parent_headers=(), agent_headers=(), parent_agent_headers=(), final_headers=()
)
"""Where no conversation is held together: only the response that a request goes on from is read."""


@record
class ConversationReader:
    """What reading of conversations takes."""

    names: ConversationNames
    tenant: str = ""
    """Who sends the request that is to be read; the facts hold only a hash of it."""

    def facts(
        self,
        headers: Sequence[tuple[bytes, bytes]],
        fields: Fields = NO_FIELDS,
        *,
        turns: tuple[int, ...] = (),
        history_blocks: int = 0,
    ) -> ConversationFacts:
        """What one request says of its conversation.

        Args:
            headers: the request's, names in lower case; of a repeated one the first value counts.
            fields: those of its body that may name a conversation (`metadata` as a whole), and
                `previous_response_id`.
            turns: the hashes of its history.
            history_blocks: blocks of its prompt before the last answer.
        """
        names, by_name = self.names, dict(reversed(headers))
        label, parent = _labels(names, by_name, fields)
        final = _in_headers(by_name, names.final_headers)
        response_id = _text(fields.get("previous_response_id")) if fields else ""
        return ConversationFacts(
            label,
            parent,
            final is not None and final[1].lower() in _YES,
            # No worker makes longer ones, and facts are kept.
            response_id if 0 < len(response_id) <= MAX_VALUE_CHARS else None,
            tenant_hash(self.tenant),
            turns,
            history_blocks,
        )


def tenant_hash(tenant: str) -> int:
    """64 bits that stand for who sends a request; 0 for nobody in particular."""
    return xxh3_64_intdigest(tenant.encode()) if tenant else 0


def _labels(names: ConversationNames, by_name: Mapping[bytes, bytes], fields: Fields) -> tuple[str | None, str | None]:
    """The conversation's own label and its parent's."""
    in_headers = _in_headers(by_name, names.headers)
    own = in_headers or _in_fields(fields, names.fields)
    if own is None:
        return None, None
    where, value = own
    agent = _in_headers(by_name, names.agent_headers)
    if agent is None:
        caller = _in_headers(by_name, names.parent_headers) if in_headers else None
        label, parent = _label(where, value), None if caller is None else _label(where, caller[1])
    else:
        caller = _in_headers(by_name, names.parent_agent_headers)
        # An agent's id need only be unique in its session.
        label = _label(agent[0], f"{value}/{agent[1]}")
        parent = _label(where, value) if caller is None else _label(agent[0], f"{value}/{caller[1]}")
    return label, None if parent == label else parent


def _label(where: str, value: str) -> str:
    return f"{where}={value if len(value) <= MAX_VALUE_CHARS else xxh3_64_hexdigest(value.encode())}"


def _in_headers(by_name: Mapping[bytes, bytes], names: tuple[str, ...]) -> tuple[str, str] | None:
    """The first of these headers that is there and not blank: its name and value."""
    for name, key in _wire_names(names):
        if key in by_name and (value := by_name[key].decode("latin-1").strip()):
            return name, value
    return None


@lru_cache(maxsize=16)
def _wire_names(names: tuple[str, ...]) -> tuple[tuple[str, bytes], ...]:
    return tuple((name.lower(), name.lower().encode()) for name in names)


def _in_fields(fields: Fields, names: Sequence[BodyField]) -> tuple[str, str] | None:
    """The first of these fields that is a text and not blank: its name and value."""
    for name in names:
        field, _, member = name.partition(".")
        raw = fields.get(field)
        if value := _text(_member(raw, member) if member else raw):
            return name, value
    return None


def _member(raw: msgspec.Raw | None, name: str) -> msgspec.Raw | None:
    try:
        return _decode_members(raw or b"{}").get(name)
    except (msgspec.DecodeError, RecursionError):
        return None


def _text(raw: msgspec.Raw | None) -> str:
    """A text without the blanks around it; empty for whatever else."""
    # Most are absent, and to raise for those would cost more than all the rest.
    if not raw or bytes(memoryview(raw)[:1]) != b'"':
        return ""
    try:
        return _decode_text(raw).strip()
    except msgspec.DecodeError:
        return ""
