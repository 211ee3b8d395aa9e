"""From a body to work for the engine.

Both routes come down to one `GenerationRequest`. It is checked in vLLM's order: the body's fields, the model, the
sampling parameters, the prompts' lengths.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from loadtest.worker import bodies, tokenizer
from loadtest.worker.bodies import (
    ChatBody,
    CompletionBody,
    KvTransferParams,
    Message,
    NamedTool,
    StreamOptions,
    is_null,
)
from loadtest.worker.errors import ApiError
from loadtest.worker.forms import AnswerForm

MAX_LOGPROBS = 20
"""vLLM's default for --max-logprobs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One prompt as the tokenizer's bytes."""

    data: bytes
    is_text: bool = True
    """False where the client sent token ids."""

    @property
    def tokens(self) -> int:
        """Its length in tokens."""
        return tokenizer.count_tokens(self.data)


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """What one POST asks for, whichever of the two routes it took."""

    chat: bool
    model: str | None
    prompts: tuple[Prompt, ...]
    choices: int
    max_tokens: int | None
    """None: as far as the model's context goes."""
    min_tokens: int
    ignore_eos: bool
    seed: int | None
    stream: bool
    include_usage: bool
    continuous_usage: bool
    logprobs: int | None
    """How many alternatives to show per output token; None shows no log-probabilities."""
    prompt_logprobs: int | None
    """The same for the prompt."""
    echo: bool
    return_token_ids: bool
    cache_salt: str | None
    kv: KvTransferParams
    temperature: float | None
    top_p: float | None
    form: AnswerForm | None = None
    """What the answer must look like; None leaves it free."""

    def check(self, *, served_models: Sequence[str], max_model_len: int) -> None:
        """Raise ApiError for the first thing that vLLM would refuse."""
        if self.model is not None and self.model not in served_models:
            raise ApiError.no_such_model(self.model, ", ".join(served_models))
        self._check_sampling(max_model_len)
        for prompt in self.prompts:
            _check_length(prompt, self.max_tokens, max_model_len)
            self._check_minimum(self.limit_tokens(prompt, max_model_len=max_model_len))

    def limit_tokens(self, prompt: Prompt, *, max_model_len: int) -> int:
        """The most output tokens that an answer to this prompt may have."""
        return max_model_len - prompt.tokens if self.max_tokens is None else self.max_tokens

    def _check_sampling(self, max_model_len: int) -> None:
        if self.choices < 1:
            raise _bad("n", self.choices, f"n must be at least 1, got {self.choices}.")
        if self.temperature is not None and self.temperature < 0:
            words = f"temperature must be non-negative, got {self.temperature}."
            raise _bad("temperature", self.temperature, words)
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise _bad("top_p", self.top_p, f"top_p must be in (0, 1], got {self.top_p}.")
        if self.max_tokens is not None and self.max_tokens < 1:
            words = f"max_tokens must be at least 1, got {self.max_tokens}."
            raise _bad("max_tokens", self.max_tokens, words)
        if self.max_tokens is not None and self.max_tokens > max_model_len:
            words = f"max_tokens={self.max_tokens} cannot be greater than max_model_len={max_model_len}."
            raise _bad("max_tokens", self.max_tokens, f"{words} Please request fewer output tokens.")
        self._check_logprobs()

    def _check_logprobs(self) -> None:
        for name, value in (("logprobs", self.logprobs), ("prompt_logprobs", self.prompt_logprobs)):
            if value is not None and not 0 <= value <= MAX_LOGPROBS:
                words = f"Requested {name} of {value}, which is outside the allowed range 0 to {MAX_LOGPROBS}."
                raise _bad(name, value, words)

    def _check_minimum(self, limit_tokens: int) -> None:
        if self.min_tokens < 0:
            words = f"min_tokens must be greater than or equal to 0, got {self.min_tokens}."
            raise ApiError.bad_request(words)
        if self.min_tokens > limit_tokens:
            words = f"min_tokens must be less than or equal to max_tokens={limit_tokens}, got {self.min_tokens}."
            raise ApiError.bad_request(words)


def from_chat(body: ChatBody) -> GenerationRequest:
    """A chat request; raises ApiError with status 400 for what only this route checks."""
    prompt = chat_prompt(
        body.messages, tools=bytes(body.tools), generation_prompt=body.add_generation_prompt is not False
    )
    limit = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    return _request(
        body,
        prompts=(prompt,),
        max_tokens=limit,
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        prompt_logprobs=body.prompt_logprobs,
        echo=False,
        form=_form(body),
    )


def from_completion(body: CompletionBody) -> GenerationRequest:
    """A completion request; raises ApiError with status 400 for what only this route checks."""
    echo = bool(body.echo)
    prompt_logprobs = body.logprobs if echo and body.prompt_logprobs is None else body.prompt_logprobs
    return _request(
        body,
        prompts=_prompts(body.prompt),
        max_tokens=body.max_tokens,
        logprobs=body.logprobs,
        prompt_logprobs=prompt_logprobs,
        echo=echo,
    )


def chat_prompt(messages: list[Message], *, tools: bytes, generation_prompt: bool) -> Prompt:
    """A conversation under the chat template."""
    if not messages:
        words = "Cannot apply chat template to an empty conversation. Provide at least one message."
        raise ApiError.bad_request(words)
    return Prompt(
        data=tokenizer.render_chat(
            ((message.role, message.text()) for message in messages),
            tools=None if tools in {b"", b"null"} else tools,
            generation_prompt=generation_prompt,
        )
    )


def token_prompt(token_ids: list[int]) -> Prompt:
    """A prompt of token ids; raises ApiError with status 400 for one outside the vocabulary."""
    try:
        return Prompt(data=tokenizer.decode(token_ids), is_text=False)
    except struct.error:
        wrong = next(token for token in token_ids if not 0 <= token < 2**32)
        raise ApiError.bad_request(f"Token id {wrong} is out of vocabulary") from None


def _request(
    body: ChatBody | CompletionBody,
    *,
    prompts: tuple[Prompt, ...],
    max_tokens: int | None,
    logprobs: int | None,
    prompt_logprobs: int | None,
    echo: bool,
    form: AnswerForm | None = None,
) -> GenerationRequest:
    options = _stream_options(body)
    return GenerationRequest(
        chat=isinstance(body, ChatBody),
        model=body.model,
        prompts=prompts,
        choices=1 if body.n is None else body.n,
        max_tokens=max_tokens,
        min_tokens=body.min_tokens or 0,
        ignore_eos=bool(body.ignore_eos),
        seed=body.seed,
        stream=bool(body.stream),
        include_usage=bool(options.include_usage),
        continuous_usage=bool(options.include_usage and options.continuous_usage_stats),
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        echo=echo,
        return_token_ids=bool(body.return_token_ids),
        cache_salt=body.cache_salt,
        kv=body.kv_transfer_params or KvTransferParams(),
        temperature=body.temperature,
        top_p=body.top_p,
        form=form,
    )


def _form(body: ChatBody) -> AnswerForm | None:
    """A tool that must be called comes before a format; one that only may be called never is."""
    if body.tool_choice not in {None, "none", "auto"}:
        return _call_form(body)
    asked = body.response_format
    if asked is None or asked.type not in {"json_object", "json_schema"}:
        return None
    return AnswerForm(schema=(asked.json_schema and asked.json_schema.body) or {})


def _call_form(body: ChatBody) -> AnswerForm:
    if is_null(body.tools):
        raise ApiError.bad_request("When using `tool_choice`, `tools` must be set.", param="tool_choice")
    tools = {tool.function.name: tool.function for tool in bodies.decode(bodies.TOOLS, bytes(body.tools))}
    named = isinstance(body.tool_choice, NamedTool)
    name = body.tool_choice.function.name if isinstance(body.tool_choice, NamedTool) else next(iter(tools), None)
    if name not in tools:
        words = "The tool specified in `tool_choice` does not match any of the specified `tools`"
        raise ApiError.bad_request(words, param="tool_choice")
    return AnswerForm(schema=tools[name].parameters or {"type": "object"}, tool=name, named=named)


def _stream_options(body: ChatBody | CompletionBody) -> StreamOptions:
    if body.stream_options is None:
        return StreamOptions(include_usage=False)
    if not body.stream:
        words = "Stream options can only be defined when `stream=True`."
        raise ApiError.bad_request(words, param="stream_options")
    return body.stream_options


def _prompts(prompt: str | list[str | int | list[int]] | None) -> tuple[Prompt, ...]:
    if not prompt:
        words = "Either prompt or prompt_embeds must be provided and non-empty."
        raise ApiError.bad_request(words, param="prompt")
    if isinstance(prompt, str):
        return (Prompt(data=prompt.encode()),)
    token_ids = [item for item in prompt if isinstance(item, int)]
    if len(token_ids) == len(prompt):
        return (token_prompt(token_ids),)
    if token_ids:
        words = "prompt must be a string, array of strings, array of tokens, or array of token arrays"
        raise ApiError.bad_request(words, param="prompt")
    return tuple(_single(item) for item in prompt if not isinstance(item, int))


def _single(item: str | list[int]) -> Prompt:
    return Prompt(data=item.encode()) if isinstance(item, str) else token_prompt(item)


def _check_length(prompt: Prompt, max_tokens: int | None, max_model_len: int) -> None:
    if not prompt.data:
        raise ApiError.bad_request("The decoder prompt cannot be empty")
    limit = f"This model's maximum context length is {max_model_len} tokens. However,"
    bound = max_model_len * tokenizer.TOKEN_BYTES
    characters = len(prompt.data.decode()) if prompt.is_text and len(prompt.data) > bound else 0
    if characters > bound:
        words = (
            f"{limit} your prompt contains {characters} characters (more than {bound} characters, which is the "
            f"upper bound for {max_model_len} input tokens). Please reduce the length of the input prompt."
        )
        raise _bad("input_text", characters, words)
    # Without a limit there must still be room for one token.
    asked = 1 if max_tokens is None else max_tokens
    total = prompt.tokens + asked
    if total > max_model_len:
        words = (
            f"{limit} you requested {asked} output tokens and your prompt contains at least {prompt.tokens} input "
            f"tokens, for a total of at least {total} tokens. Please reduce the length of the input prompt or the "
            "number of requested output tokens."
        )
        raise _bad("input_tokens", prompt.tokens, words)


def _bad(param: str, value: object, words: str) -> ApiError:
    return ApiError.bad_request(words, param=param, value=value)
