"""Routes that need the tokenizer and no engine: token ids of a prompt, and back."""

import msgspec

from loadtest.worker import bodies, tokenizer
from loadtest.worker.answers import Json
from loadtest.worker.app import HttpCall, Routes
from loadtest.worker.bodies import TokenizeBody
from loadtest.worker.dialects import messages
from loadtest.worker.errors import ApiError
from loadtest.worker.requests import GenerationRequest, Prompt, chat_prompt, from_chat, from_completion, token_prompt
from loadtest.worker.serving import Serving


class TokenizingRoutes:
    """The tokenizer's routes of one worker."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving

    def always(self) -> Routes:
        """What every server has."""
        return {"/tokenize": {"POST": self._tokenize}, "/detokenize": {"POST": self._detokenize}}

    def generating(self) -> Routes:
        """What only a server of a generating model has."""
        return {
            "/v1/chat/completions/render": {"POST": self._render_chat},
            "/v1/completions/render": {"POST": self._render_completion},
            "/v1/messages/count_tokens": {"POST": self._count_tokens},
        }

    async def _tokenize(self, call: HttpCall) -> None:
        body = bodies.decode(bodies.TOKENIZE, await call.json_body())
        self._serving.check_model(body.model)
        token_ids = tokenizer.encode(_tokenize_prompt(body).data)
        strings = [tokenizer.text_of(tokenizer.decode([token_id])) for token_id in token_ids]
        answer = {
            "count": len(token_ids),
            "max_model_len": self._serving.max_model_len,
            "tokens": token_ids,
            "token_strs": strings if body.return_token_strs else None,
        }
        await call.reply(200, msgspec.json.encode(answer))

    async def _detokenize(self, call: HttpCall) -> None:
        body = bodies.decode(bodies.DETOKENIZE, await call.json_body())
        self._serving.check_model(body.model)
        text = tokenizer.text_of(token_prompt(body.tokens).data)
        await call.reply(200, msgspec.json.encode({"prompt": text}))

    async def _render_chat(self, call: HttpCall) -> None:
        request = from_chat(bodies.decode(bodies.CHAT, await call.json_body()))
        (rendered,) = self._rendered(request, "chatcmpl-")
        await call.reply(200, msgspec.json.encode(rendered))

    async def _render_completion(self, call: HttpCall) -> None:
        request = from_completion(bodies.decode(bodies.COMPLETION, await call.json_body()))
        await call.reply(200, msgspec.json.encode(self._rendered(request, "cmpl-")))

    def _rendered(self, request: GenerationRequest, id_prefix: str) -> list[Json]:
        """What vLLM's token-in routes take, one per prompt."""
        limit = self._serving.max_model_len
        request.check(served_models=self._serving.models, max_model_len=limit)
        return [
            {
                "request_id": id_prefix + self._serving.new_id(8),
                "token_ids": tokenizer.encode(prompt.data),
                "features": None,
                "sampling_params": {
                    "n": request.choices,
                    "max_tokens": request.limit_tokens(prompt, max_model_len=limit),
                    "min_tokens": request.min_tokens,
                    "ignore_eos": request.ignore_eos,
                    "seed": request.seed,
                },
                "model": request.model,
                "stream": request.stream,
                "cache_salt": request.cache_salt,
                "kv_transfer_params": None,
            }
            for prompt in request.prompts
        ]

    async def _count_tokens(self, call: HttpCall) -> None:
        body = bodies.decode(messages.MESSAGES, await call.json_body())
        try:
            self._serving.check_model(body.model)
            tokens = from_chat(messages.as_chat(body)).prompts[0].tokens
        except ApiError as error:
            await call.reply(error.status, messages.refusal(error))
        else:
            await call.reply(200, msgspec.json.encode(messages.token_count(tokens)))


def _tokenize_prompt(body: TokenizeBody) -> Prompt:
    if body.messages is not None:
        generation_prompt = body.add_generation_prompt is not False
        return chat_prompt(body.messages, tools=bytes(body.tools), generation_prompt=generation_prompt)
    if body.prompt is None:
        raise ApiError.bad_request("Either prompt or messages must be provided.", param="prompt")
    return Prompt(data=body.prompt.encode())
