"""The prompts of completions and embeddings, in any of their four shapes.

The rule of this module: text, texts, token ids, or lists of token ids; what has another shape is an `ApiError`.
"""

from typing import Annotated

import msgspec

from gateway.wire.errors import ApiError, bad_request
from gateway.wire.prompt_chain import PromptChain, text_chain, token_chain

_TokenId = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
_decode_text = msgspec.json.Decoder(str).decode
_decode_texts = msgspec.json.Decoder(list[str]).decode
_decode_ids = msgspec.json.Decoder(list[_TokenId]).decode
_decode_id_lists = msgspec.json.Decoder(list[list[_TokenId]]).decode

Prompts = list[str] | list[list[int]]


def decode_prompts(raw: bytes, *, param: str) -> Prompts | ApiError:
    """Read the raw JSON value of the field `param`.

    Raises:
        msgspec.ValidationError: the items of the list are not all of one kind.
    """
    if raw.startswith(b'"'):
        return [_decode_text(raw)]
    if not raw.startswith(b"["):
        return bad_request(
            f"Invalid '{param}': expected a string, a list of strings, a list of token ids "
            "or a list of lists of token ids.",
            param=param,
        )
    first = raw[1:].lstrip()[:1]
    if first == b"]":
        return bad_request(f"Invalid '{param}': the list is empty.", param=param)
    if first == b'"':
        return _decode_texts(raw)
    if first == b"[":
        return _decode_id_lists(raw)
    return [_decode_ids(raw)]


def prompt_chains(prompts: Prompts, *, seed: int, block_bytes: int) -> list[PromptChain]:
    """Hash every prompt."""
    return [_prompt_chain(prompt, seed, block_bytes) for prompt in prompts]


def token_count(prompts: Prompts) -> int | None:
    """The exact length of all prompts together; None where they are text."""
    if not prompts or isinstance(prompts[0], str):
        return None
    return sum(len(prompt) for prompt in prompts)


def _prompt_chain(prompt: str | list[int], seed: int, block_bytes: int) -> PromptChain:
    if isinstance(prompt, str):
        return text_chain(prompt, seed=seed, block_bytes=block_bytes)
    return token_chain(prompt, seed=seed, block_bytes=block_bytes)
