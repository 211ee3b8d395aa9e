"""Chained block hashes of a prompt: the key under which the gateway guesses what a worker has cached.

The rule of this module: a prompt is one canonical byte stream that only grows at its end when a message or text is
appended, cut into equal blocks; a block's hash is seeded with the hash before it, so it stands for everything up to
its end. Only whole blocks count. The hashes are the gateway's own, not the engine's. Turns of a conversation are
hashed in the same way, cut where the model began to answer.
"""

import struct
from array import array
from collections.abc import Iterable, Sequence

import msgspec
from xxhash import xxh3_64_digest, xxh3_64_intdigest

from gateway.core.record import record
from gateway.core.types import Endpoint
from gateway.wire.peeked import Prompt

# Bytes that no UTF-8 text holds, so that no text can imitate the structure around it.
_MESSAGE = b"\xff"
_FIELD = b"\xfe"
_MEDIA = b"\xfd"

MAX_LATE_TURNS = 64
"""How many turns are told of a history beside its first one."""

_TEXT_PART_TYPES = frozenset(
    {"", "text", "input_text", "output_text", "refusal", "thinking", "reasoning_text", "summary_text"}
)


class Message(msgspec.Struct, kw_only=True):
    """The fields of a chat message that end up in the prompt; absent ones are empty."""

    role: str = ""
    content: str | list[msgspec.Raw] | None = None
    """Text, or parts as raw JSON: texts, and media of any kind."""
    name: msgspec.Raw = msgspec.Raw()
    reasoning: msgspec.Raw = msgspec.Raw()
    reasoning_content: msgspec.Raw = msgspec.Raw()
    tool_calls: msgspec.Raw = msgspec.Raw()
    function_call: msgspec.Raw = msgspec.Raw()
    tool_call_id: msgspec.Raw = msgspec.Raw()


class Part(msgspec.Struct):
    """A content part of any dialect: text, media, or one of Anthropic's tool blocks."""

    type: str = ""
    text: str | None = None
    refusal: str | None = None
    thinking: str | None = None
    id: msgspec.Raw = msgspec.Raw()
    name: msgspec.Raw = msgspec.Raw()
    input: msgspec.Raw = msgspec.Raw()
    tool_use_id: msgspec.Raw = msgspec.Raw()
    content: msgspec.Raw = msgspec.Raw()
    source: msgspec.Raw = msgspec.Raw()
    """Anthropic's media; hashed alone, for the cache marks beside it wander from turn to turn."""

    def written(self) -> str | None:
        """The text of a text part; None for every other kind."""
        if self.type not in _TEXT_PART_TYPES:
            return None
        return next((text for text in (self.text, self.refusal, self.thinking) if text is not None), None)


@record
class PromptChain:
    """One prompt, hashed."""

    hashes: tuple[int, ...]
    text_bytes: int = 0
    """Bytes of the canonical stream without the stand-ins of media; zero for token ids."""
    media_parts: int = 0
    turns: tuple[int, ...] = ()
    """One chained hash for each answer of the model, of all that stands before it, and one of the whole; of a long
    history the first and the newest `MAX_LATE_TURNS`. Empty unless asked for, and without messages."""
    history_blocks: int = 0
    """Whole blocks of what stands before the last answer; 0 without turns."""

    def as_prompt(self) -> Prompt:
        """The input of a request that has this one prompt."""
        token_ids, prompts = None, 1
        return Prompt(
            self.text_bytes,
            token_ids,
            (self.hashes,),
            prompts,
            self.media_parts,
            self.turns,
            self.history_blocks,
        )


_decode_part = msgspec.json.Decoder(Part | str).decode
_decode_parts = msgspec.json.Decoder(list[msgspec.Raw]).decode


def root_seed(model: str, *, endpoint: Endpoint, cache_salt: bytes | msgspec.Raw = b"") -> int:
    """The seed of a prompt's first block: prompts of another model, route or cache salt never share a hash.

    vLLM names an adapter as the model, so `model` covers it. `cache_salt` is its raw JSON value.
    """
    return xxh3_64_intdigest(_FIELD.join((endpoint.encode(), model.encode(), bytes(cache_salt))))


def chat_chain(
    messages: Sequence[Message],
    *,
    seed: int,
    preamble: Iterable[bytes | msgspec.Raw] = (),
    block_bytes: int = 256,
    with_turns: bool = False,
) -> PromptChain:
    """Hash a conversation: `preamble` (raw JSON of tools and the like), then message after message.

    A media part enters by a 64-bit hash of its JSON, so that other images never match and base64 is not text.

    With turns, those of a request whose history goes on from an earlier one's, with an answer first, begin with all
    of the earlier one's. From `MAX_LATE_TURNS` + 2 on only the first and the newest are told, but the hash of a turn
    stands for all before it as ever.
    """
    stream = _Stream()
    for raw in preamble:
        stream.pieces += (_FIELD, raw)
    turns = []
    start = 0
    for end in _turn_ends(messages) if with_turns else ():
        for message in messages[start:end]:
            stream.add_message(message)
        turns.append(stream.take())
        start = end
    for message in messages[start:]:
        stream.add_message(message)
    turns.append(stream.take())
    # Of one turn this makes no copy.
    joined = b"".join(turns)
    return PromptChain(
        block_hashes(joined, seed=seed, block_bytes=block_bytes),
        len(joined) - stream.media_bytes,
        stream.media_parts,
        _turn_hashes(turns, seed) if with_turns and messages else (),
        (len(joined) - len(turns[-1])) // block_bytes,
    )


def text_chain(text: str, *, seed: int, block_bytes: int = 256) -> PromptChain:
    """Hash a prompt that is plain text."""
    encoded = text.encode()
    return PromptChain(hashes=block_hashes(encoded, seed=seed, block_bytes=block_bytes), text_bytes=len(encoded))


def token_chain(token_ids: Sequence[int], *, seed: int, block_bytes: int = 256) -> PromptChain:
    """Hash a prompt of token ids, four bytes each: 64 ids are one block of 256 bytes.

    Raises:
        OverflowError: an id is not within 0 and 2**32 - 1.
    """
    encoded = array("I", token_ids).tobytes()
    # A seed of its own: ids must not match a text of the same bytes.
    own_seed = xxh3_64_intdigest(b"token ids", seed=seed)
    return PromptChain(hashes=block_hashes(encoded, seed=own_seed, block_bytes=block_bytes))


def block_hashes(stream: bytes, *, seed: int, block_bytes: int = 256) -> tuple[int, ...]:
    """The chained 64-bit hashes of the whole blocks of `stream`."""
    if len(stream) < block_bytes:
        return ()
    whole = len(stream) - len(stream) % block_bytes
    # iter_unpack slices in C: a quarter faster than slicing here.
    blocks = struct.iter_unpack(f"{block_bytes}s", memoryview(stream)[:whole])
    return tuple([seed := xxh3_64_intdigest(block, seed) for (block,) in blocks])


def _turn_ends(messages: Sequence[Message]) -> list[int]:
    """Where each turn but the last one ends, as a number of messages: before an answer that follows on something."""
    ends = []
    is_asked = False
    for at, message in enumerate(messages):
        # The Responses API's calls and reasoning have no role.
        is_answer = message.role in ("assistant", "")
        if is_answer and is_asked:
            ends.append(at)
        is_asked = not is_answer
    return ends


def _turn_hashes(turns: Iterable[bytes], seed: int) -> tuple[int, ...]:
    root, *late = [seed := xxh3_64_intdigest(turn, seed) for turn in turns]
    return (root, *late[-MAX_LATE_TURNS:])


class _Stream:
    """The canonical stream of a conversation in the making; the counts are those of all that was ever added."""

    __slots__ = ("media_bytes", "media_parts", "pieces")

    def __init__(self) -> None:
        self.pieces: list[bytes | msgspec.Raw] = []
        self.media_parts = 0
        self.media_bytes = 0

    def take(self) -> bytes:
        """The pieces since the last call, joined."""
        taken = b"".join(self.pieces)
        self.pieces.clear()
        return taken

    def add_message(self, message: Message) -> None:
        content = message.content
        self.pieces += (
            _MESSAGE,
            message.role.encode(),
            _FIELD,
            message.name,
            _FIELD,
            message.reasoning,
            message.reasoning_content,
            _FIELD,
            content.encode() if isinstance(content, str) else self._join_parts(content or ()),
            _FIELD,
            message.tool_calls,
            message.function_call,
            message.tool_call_id,
        )

    def _join_parts(self, parts: Iterable[msgspec.Raw]) -> bytes:
        # A text alone reads as a string does: to the model they are one, and clients change from turn to turn.
        return b"".join([self._part(raw) for raw in parts]).removeprefix(_FIELD)

    def _part(self, raw: msgspec.Raw, *, inside_result: bool = False) -> bytes:
        part = read_part(raw)
        if part is None:
            return self._media(raw)
        text = part if isinstance(part, str) else part.written()
        if text is not None:
            return _FIELD + text.encode()
        assert isinstance(part, Part)
        if part.type == "tool_use":
            return b"".join((_FIELD, part.id, _FIELD, part.name, _FIELD, part.input))
        # A result inside a result is nobody's; following it would take quadratic time.
        if part.type == "tool_result" and not inside_result:
            return b"".join((_FIELD, part.tool_use_id, self._result(part.content)))
        return self._media(part.source or raw)

    def _result(self, content: msgspec.Raw) -> bytes:
        """What a tool gave back: a string, or parts with images among them."""
        try:
            parts = _decode_parts(content)
        except (msgspec.DecodeError, RecursionError):
            return _FIELD + bytes(content)
        return b"".join([self._part(raw, inside_result=True) for raw in parts])

    def _media(self, raw: msgspec.Raw) -> bytes:
        stand_in = _MEDIA + xxh3_64_digest(raw)
        self.media_parts += 1
        self.media_bytes += len(stand_in)
        return stand_in


def read_part(raw: msgspec.Raw) -> Part | str | None:
    """A part of a message's content; None for what the worker will have to judge."""
    try:
        return _decode_part(raw)
    except (msgspec.DecodeError, RecursionError):
        return None
