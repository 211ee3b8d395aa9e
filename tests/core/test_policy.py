from typing import Any

import pytest

from gateway.core.path.base import PolicyError
from gateway.core.policy import Policy
from gateway.core.refusals import CODE, RETRY_AFTER_S, STATUS
from gateway.core.types import RefusalKind, Role, SloDefaults, SloTarget
from tests.core.factories import SLO

FAST = SloTarget(name="fast", ttft_s=0.2, tpot_s=0.01)


def test_the_built_in_policy_is_dynamos_rule_with_dynamos_defaults() -> None:
    policy = Policy()
    assert (policy.version, policy.path.name) == ("built-in", "dynamo")


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"slo": SloDefaults(default=SLO, classes=(FAST, FAST))}, "same name"),
        ({"slo": SloDefaults(default=SLO, classes=(FAST,), by_model=(("m", "slow"),))}, "slow"),
        ({"slo_objective": 0.0}, "slo_objective"),
        ({"slo_objective": 1.0}, "slo_objective"),
        ({"index_blocks_per_worker": 0}, "index_blocks_per_worker"),
        ({"default_kv_block_tokens": 0}, "default_kv_block_tokens"),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(PolicyError, match=named):
        Policy(**changes)


def test_the_smallest_bounds_are_legal() -> None:
    policy = Policy(index_blocks_per_worker=1, default_kv_block_tokens=1)
    assert (policy.index_blocks_per_worker, policy.default_kv_block_tokens) == (1, 1)


def test_every_refusal_has_a_status_a_code_and_a_retry_hint() -> None:
    assert set(STATUS) == set(CODE) == set(RETRY_AFTER_S) == set(RefusalKind)


def test_only_a_missing_model_is_the_clients_mistake() -> None:
    assert {kind for kind, status in STATUS.items() if status < 500} == {RefusalKind.MODEL_NOT_FOUND}
    assert {kind for kind, after_s in RETRY_AFTER_S.items() if after_s is None} == {RefusalKind.MODEL_NOT_FOUND}


@pytest.mark.parametrize(
    ("role", "prefills", "decodes"),
    [(Role.PREFILL, True, False), (Role.DECODE, False, True), (Role.BOTH, True, True)],
)
def test_a_role_says_which_legs_a_worker_takes(role: Role, prefills: bool, decodes: bool) -> None:
    assert (role.prefills, role.decodes) == (prefills, decodes)
