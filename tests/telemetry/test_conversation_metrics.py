"""What conversations leave in the metrics."""

import pytest

from gateway.core.conversation.facts import TurnKind
from gateway.core.conversation.rules import ConversationRules, Mode
from gateway.core.events import Dispatched, Prefilled
from gateway.core.policy import Policy
from gateway.core.types import Outlook, Role
from gateway.telemetry.exposition import Readers
from gateway.telemetry.recorder import Metrics
from gateway.telemetry.router_state import RouterState
from tests.core.factories import facts, finished, routed, router, worker
from tests.telemetry.telemetry_factories import a_decision, a_remote_decision, an_outcome, scrape


def values(found: Metrics, family: str, label: str) -> dict[str, float]:
    return {sample.labels[label]: sample.value for sample in scrape(found)[family].samples if "_total" in sample.name}


def test_every_kind_of_turn_starts_at_zero() -> None:
    assert values(Metrics(), "tidegate_conversation_turns", "turn") == {"first": 0, "next": 0, "moved": 0}


@pytest.mark.parametrize("turn", TurnKind)
def test_a_turn_is_counted_once_by_its_kind(turn: TurnKind) -> None:
    found = Metrics()
    found.record(a_decision(turn=turn, conversation="0" * 16), an_outcome(), model_label="llama")
    found.record(a_decision(), an_outcome(), model_label="llama")
    counts = values(found, "tidegate_conversation_turns", "turn")
    assert counts == {kind: float(kind is turn) for kind in TurnKind}


def test_a_transfer_is_a_turns_prompt_that_was_prefilled_elsewhere() -> None:
    found = Metrics()
    found.record(a_remote_decision(turn=TurnKind.FIRST), an_outcome(), model_label="llama")
    found.record(a_decision(turn=TurnKind.NEXT), an_outcome(), model_label="llama")
    found.record(a_remote_decision(), an_outcome(), model_label="llama")
    (sample,) = [one for one in scrape(found)["tidegate_conversation_transfers"].samples if "_total" in one.name]
    assert sample.value == 1


def test_gauges_show_where_conversations_live() -> None:
    policy = Policy(conversation=ConversationRules(mode=Mode.CONSERVE))
    of = router(worker("p0", Role.PREFILL), worker("d0"), policy=policy)
    for session in "ab":
        decision = routed(of.submit(facts(session, tokens=1000, session=session, max_output_tokens=10), 0.0))
        of.observe(Dispatched(at_s=0.0, decision_id=decision.decision_id))
        of.observe(Prefilled(at_s=0.0, decision_id=decision.decision_id))
        of.observe(finished(decision, input_tokens=1000, output_tokens=10))
    (known, _) = of.conversations.book
    of.conversations.book.chill(known)
    shown = scrape(Metrics(), Readers(state=RouterState(of, lambda: 0.0)))
    by_kv = {sample.labels["kv"]: sample.value for sample in shown["tidegate_conversations"].samples}
    held = {one.labels["worker"]: one.value for one in shown["tidegate_worker_conversation_tokens"].samples}
    assert by_kv == {"warm": 1, "cold": 1}
    assert held == {"p0": 0, "d0": 1010}
    (waiting,) = shown["tidegate_waiting_requests"].samples
    assert waiting.value == 0


def test_the_wait_for_a_conversations_first_text_is_counted_once() -> None:
    found = Metrics()
    for turn in (TurnKind.FIRST, TurnKind.NEXT, TurnKind.NEXT):
        text_s = 0.5 if turn is TurnKind.NEXT else None
        decision = a_decision(turn=turn, conversation="0" * 16)
        found.record(decision, an_outcome(duration_s=2.0), model_label="llama", first_text_s=text_s)
    samples = {one.name: one.value for one in scrape(found)["tidegate_conversation_first_text_seconds"].samples}
    assert samples["tidegate_conversation_first_text_seconds_count"] == 1
    assert samples["tidegate_conversation_first_text_seconds_sum"] == 2.5


def test_the_modelled_energy_of_prefills_is_summed_by_path() -> None:
    found = Metrics()
    outlook = Outlook(ttft_s=0.1, tpot_s=0.01, prefill_s=0.1, stall_s=0.0, crowd_s=0.0, prefill_j=40.0)
    for _ in range(2):
        found.record(a_remote_decision(outlook=outlook), an_outcome(), model_label="llama")
    found.record(a_decision(), an_outcome(), model_label="llama")
    assert values(found, "tidegate_prefill_energy_joules", "path") == {"local": 0.0, "remote": 80.0}
