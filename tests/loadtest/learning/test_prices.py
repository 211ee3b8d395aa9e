from dataclasses import replace

import pytest

from gateway.core.path.price import PriceWeights
from gateway.core.path.priced import JointPolicy
from gateway.core.path.rules import AlwaysLocal, AlwaysRemote
from gateway.core.types import SloTarget
from loadtest.fleet.pools import parse_pools
from loadtest.learning.prices import BASELINE, Traffic, Trial, fleet_costs, try_weights
from loadtest.learning.simulated import SimulatedFleet

FLEET = SimulatedFleet(
    pools=parse_pools("1P1D"), engine="h100-llama8b", slo=SloTarget(name="run", ttft_s=1.0, tpot_s=0.02)
)
TRAFFIC = Traffic(trace="synthetic:mooncake?rate=1", requests=60)
TRIAL = Trial(fleet=FLEET, traffic=TRAFFIC)


def test_a_part_of_a_trace_begins_at_its_first_request() -> None:
    part = Traffic(trace=TRAFFIC.trace, first=10, requests=5).load()
    whole = replace(TRAFFIC, requests=15).load()
    assert [one.index for one in part] == [0, 1, 2, 3, 4]
    assert part[0].arrival_s == 0.0
    assert [one.input_tokens for one in part] == [one.input_tokens for one in whole[10:]]


def test_every_policy_serves_the_same_requests() -> None:
    served = [TRIAL.serve(path) for path in (AlwaysLocal(), AlwaysRemote())]
    sent = [[(flight.request.index, flight.arrived_s) for flight in flights] for flights in served]
    assert sent[0] == sent[1]
    assert [flight.decision.path for flights in served for flight in flights[:1] if flight.decision] == [
        "local",
        "remote",
    ]


def test_a_score_counts_who_met_both_bounds() -> None:
    flights = TRIAL.serve(AlwaysRemote())
    met = [flight.ttft_s is not None and flight.ttft_s <= 1.0 and (flight.tpot_s or 0.0) <= 0.02 for flight in flights]
    score = TRIAL.score(AlwaysRemote())
    assert score.attained_ratio == pytest.approx(sum(met) / len(met))
    assert score.ttft_p90_s > 0


def test_weights_are_tried_one_beside_the_other_and_the_same_way_each_time() -> None:
    asked = [PriceWeights(), PriceWeights(stall_price=4.0, tpot_pull=2.0, prefill_price=0.005)]
    scores = try_weights(TRIAL, asked)
    assert list(scores) == list(try_weights(TRIAL, asked))
    assert scores[0] == TRIAL.score(JointPolicy(weights=asked[0], baseline=BASELINE))


def test_a_preset_prices_both_pools() -> None:
    costs = fleet_costs("h100-llama8b")
    assert costs.prefill == costs.decode
    assert 0.1 < costs.prefill.prefill_s(8192, 0) < 0.3
