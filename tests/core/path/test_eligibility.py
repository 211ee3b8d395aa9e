from typing import Any

import pytest

from gateway.core.path.eligibility import must_be_local, without_prefill
from gateway.core.types import Path, PathChoice, Reason
from tests.core.factories import decision, facts


def forced(
    isl: int = 1000,
    *,
    block_tokens: int = 16,
    has_prefiller: bool = True,
    decode_ejected: bool = False,
    **about: Any,
) -> PathChoice | None:
    return must_be_local(
        facts(**about),
        isl,
        block_tokens=block_tokens,
        has_prefiller=has_prefiller,
        decode_ejected=decode_ejected,
    )


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        ({"choices": 2}, Reason.RULE_SEVERAL_CHOICES),
        ({"prompts": 2}, Reason.RULE_SEVERAL_PROMPTS),
        ({"prompt_logprobs": True}, Reason.RULE_PROMPT_LOGPROBS),
        ({"echo_logprobs": True}, Reason.RULE_ECHO_LOGPROBS),
        ({"isl": 15}, Reason.RULE_UNDER_ONE_BLOCK),
        ({"isl": 0}, Reason.RULE_UNDER_ONE_BLOCK),
        ({"has_prefiller": False}, Reason.RULE_NO_PREFILLER),
        ({"decode_ejected": True}, Reason.RULE_DECODE_EJECTED),
    ],
)
def test_each_rule_forces_the_local_path(case: dict[str, Any], reason: Reason) -> None:
    choice = forced(**case)
    assert choice is not None
    assert (choice.path, choice.reason, choice.propensity) == (Path.LOCAL, reason, 1.0)
    assert choice.words.startswith("local by rule: ")


def test_a_request_that_no_rule_names_is_left_to_the_policy() -> None:
    assert forced() is None
    assert forced(stream=True, media_parts=1, max_output_tokens=1) is None


@pytest.mark.parametrize(("isl", "is_forced"), [(63, True), (64, False), (65, False)])
def test_one_whole_block_is_enough(isl: int, is_forced: bool) -> None:
    assert (forced(isl, block_tokens=64) is not None) is is_forced


def test_the_request_is_the_reason_before_the_fleet_is() -> None:
    choice = forced(15, choices=2, has_prefiller=False)
    assert choice is not None
    assert choice.reason is Reason.RULE_SEVERAL_CHOICES


def test_a_lost_prefill_makes_a_remote_decision_a_local_one() -> None:
    remote = decision("d-1", prefill="p0")
    lost = without_prefill(remote)
    assert (lost.path, lost.prefill_worker, lost.reason) == (Path.LOCAL, None, Reason.PREFILL_LOST)
    assert (lost.decision_id, lost.decode_worker) == (remote.decision_id, remote.decode_worker)
    assert "p0" in lost.words
    assert remote.words in lost.words
    assert lost.propensity == 1.0
