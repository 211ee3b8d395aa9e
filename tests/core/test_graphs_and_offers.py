"""Workers that split by themselves, prefill workers that a request names, and a policy that is replaced."""

import pytest

from gateway.core.events import Dispatched, FirstToken
from gateway.core.path.rules import AlwaysLocal, AlwaysRemote
from gateway.core.policy import Policy
from gateway.core.types import Endpoint, Path, Reason, Role, SloDefaults, WorkerId
from tests.core.factories import SLO, facts, finished, routed, router, worker

GRAPH = worker("graph", splits=True)
P0, P1, D0 = worker("p0", Role.PREFILL), worker("p1", Role.PREFILL), worker("d0")
REMOTE, LOCAL = Policy(path=AlwaysRemote()), Policy(path=AlwaysLocal())


class TestGraphs:
    def test_a_graph_goes_remote_in_one_leg_without_a_prefill_worker(self) -> None:
        decision = routed(router(GRAPH, policy=REMOTE).submit(facts(tokens=4096), 0.0))
        assert (decision.path, decision.prefill_worker, decision.decode_worker) == (Path.REMOTE, None, "graph")
        assert decision.reason is Reason.ALWAYS_REMOTE

    def test_its_one_prefix_view_serves_both_sides_of_the_features(self) -> None:
        core = router(GRAPH, policy=REMOTE)
        about = facts(tokens=4096, block_chains=(tuple(range(16)),))
        first = routed(core.submit(about, 0.0))
        core.observe(Dispatched(at_s=0.0, decision_id=first.decision_id))
        features = routed(core.submit(about, 0.0)).features
        assert features.prefill_isl_tokens == features.decode_isl_tokens < features.isl_tokens

    def test_its_prefill_is_booked_on_itself_until_the_first_token(self) -> None:
        core = router(GRAPH, policy=REMOTE)
        decision = routed(core.submit(facts(tokens=4096), 0.0))
        assert core.ledger.tally(GRAPH.worker_id).prefill_tokens == 4096
        assert core.ledger.tally(GRAPH.worker_id).requests == 1
        core.observe(Dispatched(at_s=0.0, decision_id=decision.decision_id))
        core.observe(FirstToken(at_s=0.1, decision_id=decision.decision_id))
        assert core.ledger.tally(GRAPH.worker_id).prefill_tokens == 0
        core.observe(finished(decision))
        assert len(core.ledger) == 0

    def test_rules_keep_a_graphs_request_local_too(self) -> None:
        decision = routed(router(GRAPH, policy=REMOTE).submit(facts(tokens=4096, choices=2), 0.0))
        assert decision.path is Path.LOCAL

    def test_a_graph_is_nobody_elses_prefill_worker(self) -> None:
        core = router(GRAPH, D0, policy=REMOTE)
        on_plain_worker = routed(core.submit(facts(tokens=4096), 0.0, exclude=frozenset({GRAPH.worker_id})))
        assert (on_plain_worker.path, on_plain_worker.reason) == (Path.LOCAL, Reason.RULE_NO_PREFILLER)


class TestOffers:
    @pytest.mark.parametrize("offered", ["p0", "p1"])
    def test_only_an_offered_prefill_worker_is_used(self, offered: str) -> None:
        core = router(P0, P1, D0, policy=REMOTE)
        for _ in range(4):
            decision = routed(core.submit(facts(tokens=4096, prefill_from=(WorkerId(offered),)), 0.0))
            assert decision.prefill_worker == offered

    def test_no_offer_means_local(self) -> None:
        decision = routed(router(P0, D0, policy=REMOTE).submit(facts(tokens=4096, prefill_from=()), 0.0))
        assert (decision.path, decision.reason) == (Path.LOCAL, Reason.RULE_NO_PREFILLER)

    def test_the_policy_may_still_prefill_locally(self) -> None:
        core = router(P0, D0, policy=LOCAL)
        assert routed(core.submit(facts(tokens=4096, prefill_from=(P0.worker_id,)), 0.0)).path is Path.LOCAL


class TestOtherEndpoints:
    @pytest.mark.parametrize("endpoint", [e for e in Endpoint if not e.disaggregates])
    def test_endpoints_without_a_hand_off_go_local(self, endpoint: Endpoint) -> None:
        core = router(P0, D0, policy=REMOTE)
        decision = routed(core.submit(facts(tokens=4096, endpoint=endpoint), 0.0))
        assert (decision.path, decision.reason) == (Path.LOCAL, Reason.RULE_ENDPOINT)

    def test_an_endpoint_that_makes_no_tokens_books_only_its_prompt(self) -> None:
        core = router(D0)
        decision = routed(core.submit(facts(tokens=1000, endpoint=Endpoint.EMBEDDINGS), 0.0))
        assert decision.features.osl_tokens == 0.0
        assert core.ledger.tally(D0.worker_id).kv_tokens == 1000

    def test_its_answers_teach_nothing_of_output_lengths(self) -> None:
        core = router(D0)
        before = core.calibration.osl_tokens("llama")
        decision = routed(core.submit(facts(tokens=1000, endpoint=Endpoint.EMBEDDINGS), 0.0))
        core.observe(finished(decision, output_tokens=1))
        assert core.calibration.osl_tokens("llama") == before


class TestAdoption:
    def test_the_next_decision_is_by_the_new_policy_and_the_old_reservations_stay(self) -> None:
        core = router(P0, D0, policy=REMOTE)
        before = routed(core.submit(facts(tokens=4096), 0.0))
        core.adopt(LOCAL)
        after = routed(core.submit(facts(tokens=4096), 0.0))
        assert (before.path, after.path) == (Path.REMOTE, Path.LOCAL)
        assert len(core.ledger) == 2

    def test_health_thresholds_slo_and_index_bounds_follow(self) -> None:
        core = router(P0, D0, policy=REMOTE)
        about = facts(tokens=4096, block_chains=(tuple(range(64)),))
        decision = routed(core.submit(about, 0.0))
        core.observe(Dispatched(at_s=0.0, decision_id=decision.decision_id))
        assert len(core.prefix) == 64
        core.adopt(Policy(index_blocks_per_worker=8, slo=SloDefaults(default=SLO), slo_objective=0.5))
        assert len(core.prefix) == 8
        assert core.slo.objective == 0.5
        assert core.health.policy == core.policy.health
