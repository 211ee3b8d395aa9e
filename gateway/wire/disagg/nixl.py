"""vLLM's NixlConnector: the decode worker pulls KV blocks from the prefill worker.

The rule of this module: both legs are the client's own body with a few top-level fields set or removed, and the
transfer parameters go from the prefill answer to the decode leg as the bytes they are. They are single-use: never
cache them, never retry a decode leg with old ones (vllm#52234).
Sources: vLLM's toy_proxy_server and NixlConnector; llm-d's routing sidecar (nixlv2).
"""

from dataclasses import dataclass

import msgspec

from gateway.core.types import Endpoint
from gateway.wire.json_object import replace
from gateway.wire.usage import Usage, usage_from_raw

_ASK_FOR_PREFILL = (
    b'{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,'
    b'"remote_host":null,"remote_port":null}'
)
_COMMON_EDITS: dict[str, bytes | None] = {
    "max_tokens": b"1",
    # vLLM refuses min_tokens above max_tokens, and stream_options without a stream.
    "min_tokens": None,
    "min_completion_tokens": None,
    "stream": b"false",
    "stream_options": None,
    "kv_transfer_params": _ASK_FOR_PREFILL,
}
_PREFILL_EDITS = {
    # A chat's max_completion_tokens goes before its max_tokens, so both are set, as llm-d does.
    Endpoint.CHAT: {**_COMMON_EDITS, "max_completion_tokens": b"1"},
    Endpoint.COMPLETIONS: _COMMON_EDITS,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillAnswer:
    """What the prefill leg's answer is read for; its text is never looked at."""

    kv_transfer_params: bytes | None
    """Raw JSON for the decode leg; None where the decode worker must prefill the prompt itself."""
    usage: Usage | None
    """Its cached tokens are the request's true ones: the decode worker's count knows nothing of this leg."""


class _Answer(msgspec.Struct):
    kv_transfer_params: msgspec.Raw = msgspec.Raw()
    usage: msgspec.Raw = msgspec.Raw()


_decode_answer = msgspec.json.Decoder(_Answer).decode
_decode_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def prefill_body(body: bytes, endpoint: Endpoint) -> bytes:
    """The body of the prefill leg: one token, no stream, blocks kept for a remote decode.

    Raises:
        ValueError: `body` is not a JSON object.
    """
    return replace(body, _PREFILL_EDITS[endpoint])


def decode_body(body: bytes, kv_transfer_params: bytes) -> bytes:
    """The body of the decode leg: the client's, with the prefill answer's parameters.

    Raises:
        ValueError: `body` is not a JSON object.
    """
    return replace(body, {"kv_transfer_params": kv_transfer_params})


def parse_prefill_answer(body: bytes) -> PrefillAnswer:
    """Read a 2xx answer of the prefill leg; never raises.

    Parameters that are missing, null, empty or no object (vLLM sends null where the first token ended the answer or
    the request was aborted), or an answer that is not JSON, are None.
    """
    try:
        answer = _decode_answer(body)
    except (msgspec.DecodeError, RecursionError):
        return PrefillAnswer(kv_transfer_params=None, usage=None)
    return PrefillAnswer(kv_transfer_params=_usable(answer.kv_transfer_params), usage=usage_from_raw(answer.usage))


def _usable(raw: msgspec.Raw) -> bytes | None:
    try:
        members = _decode_object(raw)
    except (msgspec.DecodeError, RecursionError):
        return None
    return bytes(raw) if members else None
