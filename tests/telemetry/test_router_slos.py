"""The SLOs that a scrape shows are those of the policy in force."""

from dataclasses import replace

from gateway.core.types import SloDefaults, SloTarget
from gateway.telemetry.router_state import RouterState
from tests.core.factories import router, worker

LOOSE = SloTarget(name="default", ttft_s=6.0, tpot_s=0.1)
STRICT = SloTarget(name="chat", ttft_s=1.0, tpot_s=None)


def test_an_adopted_policy_brings_its_slos_and_its_objective() -> None:
    made = router(worker("d0"))
    state = RouterState(made, lambda: 0.0)
    assert (state.slos(), state.slo_objective()) == ((made.policy.slo.default,), 0.99)
    made.adopt(replace(made.policy, slo=SloDefaults(default=LOOSE, classes=(STRICT,)), slo_objective=0.9))
    assert (state.slos(), state.slo_objective()) == ((LOOSE, STRICT), 0.9)
