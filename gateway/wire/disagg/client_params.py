"""Transfer parameters that a client sent itself.

The rule of this module: who fetches whose KV or encoder cache is the gateway's to say, in every route with a JSON
body. A client's own parameters, forged or stale, can yield another prompt's answer (vllm#52234) or send a worker to
a host of the client's choice; they reach no worker. What holds none keeps its bytes.
Sources: the request fields of vLLM's OpenAI server; what is in `vllm_xargs` becomes the engine's `extra_args`, where
the connectors look.
"""

import msgspec

from gateway.wire.json_object import replace

TRANSFER_FIELDS = ("kv_transfer_params", "ec_transfer_params")
"""At the top of a body, and inside `vllm_xargs`."""
EXTRA_ARGS = "vllm_xargs"

_NO_VALUES = (b"", b"null")
_ABSENT = msgspec.Raw()


class _Fields(msgspec.Struct):
    kv_transfer_params: msgspec.Raw = _ABSENT
    ec_transfer_params: msgspec.Raw = _ABSENT
    vllm_xargs: msgspec.Raw = _ABSENT


_decode_fields = msgspec.json.Decoder(_Fields).decode
_decode_extra_args = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def without_transfer_params(body: bytes) -> bytes:
    """The client's JSON object without transfer parameters of its own; most come back as they are.

    Raises:
        ValueError: `body` might hold some and is not a JSON object.
    """
    # Either is in the bytes where a key of these names is: its letters can be written otherwise only by \u escapes.
    if b"transfer_params" not in body and b"\\u" not in body:
        return body
    try:
        fields = _decode_fields(body)
        edits: dict[str, bytes | None] = {
            name: None for name in TRANSFER_FIELDS if bytes(getattr(fields, name)) not in _NO_VALUES
        }
        extra_args = _cleaned(fields.vllm_xargs)
    except RecursionError as error:
        raise ValueError("the JSON object is nested too deeply") from error
    if extra_args is not None:
        edits[EXTRA_ARGS] = extra_args
    return replace(body, edits) if edits else body


def _cleaned(extra_args: msgspec.Raw) -> bytes | None:
    """`vllm_xargs` without the parameters; None where it holds none, or is no object and the worker's to refuse."""
    if not bytes(extra_args).startswith(b"{"):
        return None
    members = _decode_extra_args(extra_args)
    kept = {name: value for name, value in members.items() if name not in TRANSFER_FIELDS}
    return None if len(kept) == len(members) else msgspec.json.encode(kept)
