"""A whole answer as one JSON document, field by field as vLLM 0.32 writes it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import msgspec

from loadtest.worker import tokenizer
from loadtest.worker.generation import Generation, Plan, Running
from loadtest.worker.logprobs import chat_logprobs, completion_logprobs, prompt_logprobs
from loadtest.worker.requests import GenerationRequest

VERSION = "0.32.0"
"""The vLLM version whose answers are emulated."""
FINGERPRINT = f"vllm-{VERSION}-emulated"

Json = dict[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """What is the same in every part of one answer."""

    response_id: str
    created: int
    """Unix seconds."""
    model: str
    details: bool
    """Whether usage tells the cached prompt tokens."""
    max_model_len: int
    """The most tokens of prompt and answer together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """The tokens of one answer. A prompt counts once, however many choices were made from it."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    created_tokens: int
    """Prompt tokens in full blocks that were computed here and can be hit from now on."""

    @classmethod
    def of(cls, request: GenerationRequest, generation: Generation, *, block_tokens: int) -> Self:
        """Count up an answer whose sequences have all ended."""
        firsts = generation.running[:: request.choices]
        return cls(
            prompt_tokens=sum(running.plan.prompt.tokens for running in firsts),
            completion_tokens=sum(running.made for running in generation.running),
            cached_tokens=sum(running.cached_tokens for running in firsts),
            created_tokens=sum(
                _created_tokens(running, generation.remote_tokens_of(running.plan), block_tokens) for running in firsts
            ),
        )

    def whole(self, request: GenerationRequest, *, details: bool) -> Json:
        """As in a JSON answer; only chat counts created cache tokens."""
        cache: Json | None = {
            "cached_tokens": self.cached_tokens,
            "created_cache_tokens": self.created_tokens if request.chat else None,
            "multimodal_tokens": None,
        }
        tail = {"prompt_tokens_details": cache if details else None, "completion_tokens_details": None}
        return {**self._counts(), **tail}

    def streamed(self, request: GenerationRequest, *, details: bool) -> Json:
        """As in a stream's last chunk, where null fields are left out."""
        cache: Json = {"cached_tokens": self.cached_tokens}
        if request.chat:
            cache["created_cache_tokens"] = self.created_tokens
        return {**self._counts(), "prompt_tokens_details": cache} if details else self._counts()

    def _counts(self) -> Json:
        return {
            "prompt_tokens": self.prompt_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "completion_tokens": self.completion_tokens,
        }


def whole_answer(
    request: GenerationRequest,
    plans: Sequence[Plan],
    envelope: Envelope,
    usage: Usage,
    kv_transfer_params: Json | None,
) -> bytes:
    """The answer to a request that did not ask for a stream."""
    choice = _chat_choice if request.chat else _completion_choice
    answer: Json = {
        "id": envelope.response_id,
        "object": "chat.completion" if request.chat else "text_completion",
        "created": envelope.created,
        "model": envelope.model,
        "choices": [choice(request, plan) for plan in plans],
        "service_tier": None,
        "system_fingerprint": FINGERPRINT,
        "usage": usage.whole(request, details=envelope.details),
    }
    if request.chat:
        answer |= _prompt_fields(request, plans[0]) | {"prompt_text": None}
    answer |= {"kv_transfer_params": kv_transfer_params, "ec_transfer_params": None, "metrics": None}
    return msgspec.json.encode(answer)


def _created_tokens(running: Running, remote_tokens: int, block_tokens: int) -> int:
    known = max(running.cached_tokens, remote_tokens)
    return max(0, running.plan.full_blocks * block_tokens - known)


def _chat_choice(request: GenerationRequest, plan: Plan) -> Json:
    token_ids = plan.token_ids(0, plan.output_tokens)
    message: Json = {
        "role": "assistant",
        "content": "" if plan.call else plan.text(0, plan.output_tokens).decode(),
        "refusal": None,
        "annotations": None,
        "audio": None,
        "function_call": None,
    }
    if plan.call and plan.script:
        function = {"name": plan.call.name, "arguments": plan.script.arguments}
        message["tool_calls"] = [{"id": plan.call.call_id, "type": "function", "function": function}]
    message["reasoning"] = None
    return {
        "index": plan.index,
        "message": message,
        "logprobs": None if request.logprobs is None else chat_logprobs(token_ids, request.logprobs),
        "finish_reason": plan.told_reason,
        "stop_reason": None,
        "token_ids": token_ids if request.return_token_ids else None,
        "routed_experts": None,
    }


def _completion_choice(request: GenerationRequest, plan: Plan) -> Json:
    token_ids = plan.token_ids(0, plan.output_tokens)
    echoed = tokenizer.encode(plan.prompt.data) if request.echo else []
    text = plan.text(0, plan.output_tokens).decode()
    logprobs = None
    if request.logprobs is not None:
        shown = [*echoed, *token_ids]
        logprobs = completion_logprobs(shown, request.logprobs, offset=0, starts_text=request.echo)
    return {
        "index": plan.index,
        "text": tokenizer.text_of(plan.prompt.data) + text if request.echo else text,
        "logprobs": logprobs,
        "finish_reason": plan.finish_reason,
        "stop_reason": None,
        "token_ids": token_ids if request.return_token_ids else None,
        **_prompt_fields(request, plan),
        "routed_experts": None,
    }


def _prompt_fields(request: GenerationRequest, plan: Plan) -> Json:
    wanted = request.return_token_ids or request.prompt_logprobs is not None
    token_ids = tokenizer.encode(plan.prompt.data) if wanted else []
    asked = request.prompt_logprobs
    return {
        "prompt_logprobs": None if asked is None else prompt_logprobs(token_ids, asked),
        "prompt_token_ids": token_ids if request.return_token_ids else None,
    }
