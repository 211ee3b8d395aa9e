"""What one look at a request gives, and the frame that every look goes through.

The rule of this module: looking never raises. Bad input is an `ApiError` that names the field at fault.
"""

import re
from collections.abc import Callable, Sequence

import msgspec

from gateway.core.conversation.facts import ConversationFacts
from gateway.core.output_length.carried import PromptReader
from gateway.core.record import record
from gateway.core.types import Endpoint, OutputFeatures, RequestFacts, RequestId
from gateway.wire.conversation_names import NO_FIELDS, ConversationReader, Fields
from gateway.wire.errors import ApiError, bad_request
from gateway.wire.slo_headers import Hints, read_hints

Headers = Sequence[tuple[bytes, bytes]]
"""A request's headers, names in lower case (as ASGI has them)."""

MAX_COUNT = 2**63 - 1
"""So that every reader of the facts may take a count for a 64-bit integer."""

DEFAULT_BLOCK_BYTES = 256


@record
class Peeked:
    """What one look at a request gave."""

    facts: RequestFacts
    stream: bool
    include_usage: bool
    """The client asked for usage in the stream, or gets it always in this dialect."""
    raw_model: str
    """The model as the client wrote it, before any alias; empty where it named none and need not."""
    stores: bool = False
    """The worker is to keep the answer, to be read and gone on from by its id."""


@record
class Arrival:
    """What is known of a request beside its body."""

    request_id: RequestId
    hints: Hints
    headers: Headers
    block_bytes: int
    reader: PromptReader | None = None
    """None where nobody asks how long the answer will be."""
    conversation: ConversationReader | None = None
    """None where nobody asks which conversation this is a turn of."""

    def conversation_facts(
        self, fields: Fields = NO_FIELDS, *, turns: tuple[int, ...] = (), history_blocks: int = 0
    ) -> ConversationFacts | None:
        """What headers and body say of the conversation, see `ConversationReader.facts`; None where nobody asks."""
        if self.conversation is None:
            return None
        return self.conversation.facts(self.headers, fields, turns=turns, history_blocks=history_blocks)


@record
class Prompt:
    """A request's input as `RequestFacts` describe it."""

    text_bytes: int = 0
    token_ids: int | None = None
    chains: tuple[tuple[int, ...], ...] = ()
    prompts: int = 1
    media_parts: int = 0
    turns: tuple[int, ...] = ()
    """Empty unless conversations are of interest."""
    history_blocks: int = 0
    """See `ConversationFacts`."""


def look(
    body: bytes,
    read: Callable[[bytes, Arrival], Peeked | ApiError],
    *,
    request_id: RequestId,
    headers: Headers,
    block_bytes: int,
    reader: PromptReader | None = None,
    conversation: ConversationReader | None = None,
) -> Peeked | ApiError:
    """Read a JSON body with `read`, whose decoding errors become refusals."""
    hints = read_hints(headers)
    if isinstance(hints, ApiError):
        return hints
    if not body or body.isspace():
        return bad_request("The request body is empty; expected a JSON object.")
    arrival = Arrival(request_id, hints, headers, block_bytes, reader, conversation)
    try:
        # Fields that are skipped are not validated by the decoder, but editing and the worker would stumble on them.
        if not body.isascii():
            body.decode()
        return read(body, arrival)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return _unreadable(error, body)


def peeked(
    arrival: Arrival,
    endpoint: Endpoint,
    *,
    model: str | None,
    prompt: Prompt,
    stream: bool = False,
    include_usage: bool = False,
    max_output_tokens: int | None = None,
    output_features: OutputFeatures | None = None,
    conversation_fields: Fields = NO_FIELDS,
    stores: bool = False,
) -> Peeked:
    """Put together what was read of a request with one choice."""
    facts = facts_of(
        arrival,
        endpoint,
        model or "",
        prompt,
        stream=stream,
        max_output_tokens=max_output_tokens,
        conversation=arrival.conversation_facts(
            conversation_fields, turns=prompt.turns, history_blocks=prompt.history_blocks
        ),
        output_features=output_features,
    )
    return Peeked(facts, stream, include_usage, facts.model, stores)


def facts_of(
    arrival: Arrival,
    endpoint: Endpoint,
    model: str,
    prompt: Prompt,
    *,
    stream: bool,
    max_output_tokens: int | None,
    choices: int = 1,
    prompt_logprobs: bool = False,
    echo_logprobs: bool = False,
    conversation: ConversationFacts | None,
    output_features: OutputFeatures | None,
) -> RequestFacts:
    """What was read, with what is known of the request beside its body."""
    hints, prefill_from = arrival.hints, None
    return RequestFacts(
        arrival.request_id,
        endpoint,
        model,
        stream,
        prompt.text_bytes,
        prompt.token_ids,
        arrival.block_bytes,
        prompt.chains,
        prompt.prompts,
        prompt.media_parts,
        max_output_tokens,
        choices,
        prompt_logprobs,
        echo_logprobs,
        conversation,
        prefill_from,
        hints.slo_class,
        hints.slo_ttft_s,
        hints.slo_tpot_s,
        output_features,
    )


# --- raw JSON values -----------------------------------------------------------------------------------------------

_decode_int = msgspec.json.Decoder(int).decode
_decode_text = msgspec.json.Decoder(str).decode
_decode_list = msgspec.json.Decoder(list[msgspec.Raw]).decode


def is_set(raw: bytes | msgspec.Raw) -> bool:
    """True unless the field is absent or null."""
    return len(raw) > 0 and bytes(raw) != b"null"


def is_on(raw: msgspec.Raw) -> bool:
    """True unless a flag is absent, null or false; anything else might be taken for true by a worker."""
    return len(raw) > 0 and bytes(raw) not in (b"null", b"false")


def count(raw: msgspec.Raw) -> int:
    """How many items a field brings that may be one value or a list."""
    if not is_set(raw):
        return 0
    if not bytes(raw).startswith(b"["):
        return 1
    return len(_decode_list(raw))


def positive(raw: msgspec.Raw) -> int | None:
    """A limit that is a positive integer; None for whatever else, which the worker will judge."""
    try:
        value = _decode_int(raw)
    except msgspec.DecodeError:
        return None
    return value if 1 <= value <= MAX_COUNT else None


def text_or_items(raw: msgspec.Raw) -> str | list[msgspec.Raw] | None:
    """A field that may be a string or a list, its items raw; None where it is neither."""
    start = bytes(memoryview(raw)[:1])
    if start == b'"':
        return _decode_text(raw)
    return _decode_list(raw) if start == b"[" else None


# --- refusals ------------------------------------------------------------------------------------------------------

_AT = re.compile(r" - at `(?:key in )?\$\.?(.*)`$")
_MISSING = re.compile(r"missing required field `(.*)`")


def _unreadable(error: Exception, body: bytes) -> ApiError:
    if isinstance(error, msgspec.ValidationError):
        return wrong_shape(error)
    if isinstance(error, RecursionError):
        return bad_request("The request body is nested too deeply.")
    return _not_json(error, body)


def wrong_shape(error: msgspec.ValidationError, *, root: str = "") -> ApiError:
    """Valid JSON with a value of the wrong type, named by its path."""
    text = str(error)
    where = _AT.search(text)
    path = root + (where.group(1) if where else "")
    missing = _MISSING.search(text)
    if missing:
        path = f"{path}.{missing.group(1)}".lstrip(".")
        return bad_request(f"Missing required parameter: '{path}'.", param=path)
    what = _AT.sub("", text)
    what = what[:1].lower() + what[1:]
    if not path:
        return bad_request(f"The request body must be a JSON object: {what}.")
    return bad_request(f"Invalid '{path}': {what}.", param=path)


def _not_json(error: Exception, body: bytes) -> ApiError:
    text = str(error).removeprefix("JSON is malformed: ")
    if isinstance(error, UnicodeDecodeError):
        text = f"invalid UTF-8 (byte {error.start})"
    elif text == "Input data was truncated":
        # The decoder says the same of a lone \ud83d, which JSON text cannot hold either.
        text = f"it ends too early (byte {len(body)}), or holds half of a surrogate pair"
    return bad_request(f"The request body is not valid JSON: {text}.")
