"""A decision in words.

The rule of this module: it says what the record says, and adds no reason of its own.
"""

from collections.abc import Sequence

from gateway.core.conversation.facts import TurnKind
from gateway.core.types import Candidate, Decision, Outcome, Outlook, WorkerId


def explain(decision: Decision, outcome: Outcome) -> str:
    """Why a request went where it went, and what came of it, in a few sentences."""
    return " ".join((_route(decision), _why(decision), *_pools(decision), _end(decision, outcome)))


def _route(decision: Decision) -> str:
    workers = f"decode on {decision.decode_worker}"
    if decision.prefill_worker is not None:
        workers = f"prefill on {decision.prefill_worker}, {workers}"
    by_pin = " (where its conversation lives)" if decision.pinned else ""
    retry = f" This was attempt {decision.attempt}." if decision.attempt > 1 else ""
    return f"The path was {decision.path}: {workers}{by_pin}.{_turn(decision)}{retry}"


def _turn(decision: Decision) -> str:
    match decision.turn:
        case None:
            return ""
        case TurnKind.FIRST:
            said = "begins with it"
        case TurnKind.NEXT:
            said = "goes on with it"
        case TurnKind.MOVED:
            said = "begins anew there, for its KV is not"
    return f" Conversation {decision.conversation} {said}."


def _why(decision: Decision) -> str:
    features = decision.features
    return (
        f"Policy {decision.policy} ({decision.policy_version}) chose it because {decision.words.rstrip('.')}."
        f" The prompt was put at {features.isl_tokens} tokens, of which {features.prefill_isl_tokens} were uncached on"
        f" the best prefill worker and {features.decode_isl_tokens} on the best decode worker;"
        f" {features.osl_tokens:.0f} tokens of output were expected ({output_source(decision)})."
        f"{_expected(decision.outlook)}"
    )


def output_source(decision: Decision) -> str:
    """Where the expected output comes from."""
    return "predicted by the model" if decision.osl_predicted else "the model's mean"


def _expected(outlook: Outlook | None) -> str:
    if outlook is None:
        return ""
    return f" A TTFT of {outlook.ttft_s:.3g} s and a TPOT of {outlook.tpot_s:.3g} s were foreseen."


def _pools(decision: Decision) -> list[str]:
    pools = (
        ("Prefill", decision.prefill_candidates, decision.prefill_worker),
        ("Decode", decision.decode_candidates, decision.decode_worker),
    )
    return [_scores(name, candidates, chosen) for name, candidates, chosen in pools if candidates and chosen]


def _scores(name: str, candidates: Sequence[Candidate], chosen: WorkerId) -> str:
    ordered = sorted(candidates, key=lambda candidate: (candidate.worker_id != chosen, -candidate.total))
    return f"{name} scores: {', '.join(f'{each.worker_id} {each.total:.3f}' for each in ordered)}."


def _end(decision: Decision, outcome: Outcome) -> str:
    slo = decision.slo
    times = [
        f"{name} {actual_s:.3g} s{'' if bound_s is None else f' of {bound_s:g} s'}"
        for name, actual_s, bound_s in (("TTFT", outcome.ttft_s, slo.ttft_s), ("TPOT", outcome.tpot_s, slo.tpot_s))
        if actual_s is not None
    ]
    judged = {True: f"SLO {slo.name} was met", False: f"SLO {slo.name} was missed", None: "no SLO was judged"}
    told = ", ".join((*times, judged[outcome.attained]))
    return f"It ended {outcome.kind} with status {outcome.status} after {outcome.duration_s:.3g} s: {told}."
