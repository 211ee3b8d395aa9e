from dataclasses import replace
from pathlib import Path as FilePath

import numpy as np
import pytest

from gateway.core.path.priced import JointPolicy
from gateway.core.path.rules import AlwaysRemote, DynamoRule
from gateway.core.types import Features, Path, Reason, SloTarget
from gateway.policies import build_policy
from gateway.settings import Settings
from loadtest.compare.arms import DYNAMO_PLACING, Arm
from loadtest.compare.live_fleet import gateway_settings, in_real_seconds, routing_beneath, running_stand, served_of
from loadtest.learning.prices import fleet_costs
from loadtest.traces.loaders import load_trace
from policy_store.learn.environment import ServedRow
from tests.loadtest.compare.compare_lab import PLACE

ROW = ServedRow(
    order=0,
    features=Features(isl_tokens=10, prefill_isl_tokens=10, decode_isl_tokens=10, osl_tokens=5.0),
    prefill_backlog_tokens=None,
    decode_requests=None,
    path=Path.LOCAL,
    reason=Reason.PRICE,
    cell=None,
    propensity=1.0,
    ttft_s=1.5,
    tpot_s=0.02,
    ok=True,
    attained=True,
)


def test_a_lap_holds_its_own_requests_and_who_has_no_answer_was_late_without_end() -> None:
    rows = [
        replace(ROW, order=9),
        replace(ROW, order=10, path=Path.REMOTE, ttft_s=2.5, attained=False),
        replace(ROW, order=11, tpot_s=None),
        replace(ROW, order=13, ok=False, attained=False),
        replace(ROW, order=14),
    ]
    served = served_of(rows, 10, 4)
    assert served.met.tolist() == [False, True, False, False]
    assert served.local.tolist() == [False, True, False, True]
    assert served.ttft_s.tolist() == [2.5, 1.5, np.inf, np.inf]
    assert np.isnan(served.tpot_s[1])
    assert served.tpot_s[[0, 2, 3]].tolist() == [0.02, np.inf, np.inf]


def test_prices_run_as_fast_as_the_workers() -> None:
    engine = fleet_costs(PLACE.engine).decode
    real = in_real_seconds(fleet_costs(PLACE.engine), 4.0).decode
    assert 4.0 * real.prefill_s(3000, 500, decodes=3, context_tokens=9000) == pytest.approx(
        engine.prefill_s(3000, 500, decodes=3, context_tokens=9000)
    )
    assert 4.0 * real.arrival_s(2000) == pytest.approx(engine.arrival_s(2000))
    assert 4.0 * real.transfer_s(2000) == pytest.approx(engine.transfer_s(2000))


def test_the_gateway_has_the_bounds_in_its_own_seconds_and_the_arms_placement() -> None:
    tree = gateway_settings(
        SloTarget(name="standard", ttft_s=2.0, tpot_s=0.04), 4.0, admin_port=0, log=FilePath("log.jsonl")
    )
    arm = Arm(name="rule", path=DynamoRule(), placing=DYNAMO_PLACING)
    settings = Settings.model_validate({**tree, "routing": routing_beneath(arm)})
    policy = build_policy(settings)
    assert (policy.slo.default.ttft_s, policy.slo.default.tpot_s) == (0.5, 0.01)
    assert settings.fleet.scrape_interval_s == 0.25
    assert policy.prefill_placement == DYNAMO_PLACING.prefill
    assert policy.decode_placement == DYNAMO_PLACING.decode


@pytest.mark.e2e
def test_a_running_fleet_serves_laps_by_one_arm_after_the_other(tmp_path: FilePath) -> None:
    requests = load_trace("synthetic:azure-conv", limit=30, seed=2, rate_scale=0.8)
    joint = Arm(name="joint", path=JointPolicy(baseline=DynamoRule()), costs=fleet_costs(PLACE.engine))
    remote = Arm(name="remote", path=AlwaysRemote(), placing=DYNAMO_PLACING)
    with running_stand(PLACE, 8.0, tmp_path) as stand, stand.laps("smoke", requests, 0) as laps:
        found = [laps.serve(arm) for arm in (remote, joint, remote)]
    for lap in found:
        assert len(lap.served.met) == 30
        assert np.isfinite(lap.served.ttft_s).all()
        # In engine seconds, an answer takes as long as on the engine, and not an eighth of it.
        assert np.nanmean(lap.served.tpot_s) > 0.004
    assert found[0].served.local.mean() < found[1].served.local.mean()
    assert len(list((tmp_path / "bundles").iterdir())) == 1
