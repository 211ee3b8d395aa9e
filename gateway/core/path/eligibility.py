"""Requests that prefill/decode disaggregation cannot do right.

The rule of this module: these go local whatever the policy says. Each line has its source; order matters only for
which reason is shown.
"""

from dataclasses import replace

from gateway.core.types import Decision, Path, PathChoice, Reason, RequestFacts


def must_be_local(  # noqa: PLR0911 (one line per rule, and words are made only for the one that applies)
    facts: RequestFacts, isl_tokens: int, *, block_tokens: int, has_prefiller: bool, decode_ejected: bool
) -> PathChoice | None:
    """The forced local choice, or None where a policy may decide.

    Args:
        facts: the request.
        isl_tokens: its estimated prompt length.
        block_tokens: tokens in one KV block of the decode worker.
        has_prefiller: whether a healthy prefill worker other than the decode worker exists.
        decode_ejected: whether the decode worker is asked only because too few well ones are left. If it fails,
            a prefill for it would be lost, with its KV held until the lease ends.
    """
    # One prefill's KV is single use; the decode worker never sees the prompt's logits (vllm-ascend#13363); only
    # whole blocks are transferred (wire.md 3.1).
    if not facts.endpoint.disaggregates:
        return _local(Reason.RULE_ENDPOINT, f"{facts.endpoint} has no prefill hand-off")
    if facts.choices > 1:
        return _local(Reason.RULE_SEVERAL_CHOICES, f"{facts.choices} choices share one prompt")
    if facts.prompts > 1:
        return _local(Reason.RULE_SEVERAL_PROMPTS, f"{facts.prompts} prompts in one request")
    if facts.prompt_logprobs:
        return _local(Reason.RULE_PROMPT_LOGPROBS, "prompt logprobs need the prompt's own forward pass")
    if facts.echo_logprobs:
        return _local(Reason.RULE_ECHO_LOGPROBS, "echo with logprobs needs the prompt's own forward pass")
    if isl_tokens < block_tokens:
        return _local(Reason.RULE_UNDER_ONE_BLOCK, f"{isl_tokens} prompt tokens fill no KV block of {block_tokens}")
    if not has_prefiller:
        return _local(Reason.RULE_NO_PREFILLER, "no healthy prefill worker")
    if decode_ejected:
        return _local(Reason.RULE_DECODE_EJECTED, "the decode worker is ejected and asked for want of a better")
    return None


def _local(reason: Reason, words: str) -> PathChoice:
    return PathChoice(path=Path.LOCAL, reason=reason, words=f"local by rule: {words}")


def without_prefill(decision: Decision) -> Decision:
    """What became of a remote decision whose prefill leg gave nothing to fetch: the decode worker prefills."""
    return replace(
        decision,
        path=Path.LOCAL,
        prefill_worker=None,
        reason=Reason.PREFILL_LOST,
        words=f"local after all: {decision.prefill_worker} gave no KV to fetch ({decision.words})",
        propensity=1.0,
    )
