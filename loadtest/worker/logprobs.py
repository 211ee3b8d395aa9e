"""Log-probabilities in vLLM's shapes.

The numbers are made up and always the same: a token is the likeliest one, its alternatives are words of the
filler's vocabulary, each a step less likely.
"""

from collections.abc import Sequence

from loadtest.worker import filler, tokenizer

_LIKELIEST = -0.25
_STEP = -1.5

Json = dict[str, object]


def chat_logprobs(token_ids: Sequence[int], alternatives: int) -> Json:
    """A chat choice's `logprobs` for some output tokens."""
    return {"content": [_chat_token(token_id, alternatives) for token_id in token_ids]}


def completion_logprobs(token_ids: Sequence[int], alternatives: int, *, offset: int, starts_text: bool = False) -> Json:
    """A completion choice's `logprobs`; `offset` is where the first token's text begins.

    Where the tokens start with an echoed prompt, the very first one has no probability.
    """
    texts = [_text(token_id) for token_id in token_ids]
    offsets = [offset]
    for text in texts[:-1]:
        offsets.append(offsets[-1] + len(text))
    chosen: list[float | None] = [_LIKELIEST] * len(texts)
    tops: list[dict[str, float] | None] = [dict(_ranked(text, alternatives)) for text in texts]
    if starts_text:
        chosen[0] = tops[0] = None
    return {"text_offset": offsets, "token_logprobs": chosen, "tokens": texts, "top_logprobs": tops}


def prompt_logprobs(token_ids: Sequence[int], alternatives: int) -> list[Json | None]:
    """The prompt's log-probabilities by token id; its first token has none."""
    return [None, *(_prompt_token(token_id, alternatives) for token_id in token_ids[1:])]


def _text(token_id: int) -> str:
    return tokenizer.text_of(tokenizer.decode([token_id]))


def _ranked(text: str, alternatives: int) -> list[tuple[str, float]]:
    """The token itself and its alternatives, likeliest first; `alternatives` counts the token, as in vLLM."""
    others = filler.words(0, first=0, count=alternatives).decode()
    size = tokenizer.TOKEN_BYTES
    words = [others[start : start + size] for start in range(0, len(others), size)]
    chosen = [text, *(word for word in words if word != text)][: max(1, alternatives)]
    return [(word, _LIKELIEST + rank * _STEP) for rank, word in enumerate(chosen)]


def _chat_token(token_id: int, alternatives: int) -> Json:
    text = _text(token_id)
    tops = _ranked(text, alternatives) if alternatives else []
    return {**_entry(text, _LIKELIEST), "top_logprobs": [_entry(word, value) for word, value in tops]}


def _entry(text: str, logprob: float) -> Json:
    return {"token": text, "logprob": logprob, "bytes": list(text.encode())}


def _prompt_token(token_id: int, alternatives: int) -> Json:
    ranked = enumerate(_ranked(_text(token_id), alternatives), start=1)
    ids = [token_id, *(tokenizer.encode(word.encode())[0] for word, _ in _ranked("", alternatives + 1)[1:])]
    return {
        str(id_): {"logprob": value, "rank": rank, "decoded_token": word}
        for id_, (rank, (word, value)) in zip(ids, ranked, strict=False)
    }
