"""Decisions, outcomes and readers for the telemetry's tests."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from gateway.core.health import HealthState
from gateway.core.types import (
    Candidate,
    Decision,
    DecisionId,
    Features,
    Outcome,
    OutcomeKind,
    Path,
    Reason,
    Refusal,
    RefusalKind,
    RequestId,
    Role,
    SloTarget,
    WorkerId,
)
from gateway.telemetry.exposition import Exposition
from gateway.telemetry.recorder import Metrics
from gateway.telemetry.state import Readers, WorkerState

CHAT = SloTarget(name="chat", ttft_s=1.7, tpot_s=0.055)
BATCH = SloTarget(name="batch", ttft_s=None, tpot_s=None)


def a_decision(**changes: Any) -> Decision:
    values: dict[str, Any] = {
        "decision_id": DecisionId("d-1"),
        "request_id": RequestId("r-1"),
        "model": "llama",
        "attempt": 1,
        "path": Path.LOCAL,
        "prefill_worker": None,
        "decode_worker": WorkerId("decode-0"),
        "policy": "isl",
        "policy_version": "7",
        "reason": Reason.SHORT_EFFECTIVE_ISL,
        "words": "512 uncached tokens are below 1,000",
        "propensity": 0.9,
        "cluster": None,
        "pinned": False,
        "features": Features(isl_tokens=1000, prefill_isl_tokens=750, decode_isl_tokens=512, osl_tokens=200.0),
        "prefill_hit_tokens": 250,
        "decode_hit_tokens": 488,
        "slo": CHAT,
        "decode_candidates": (
            Candidate(worker_id=WorkerId("decode-0"), scores=(("queue", 0.75), ("prefix", 0.5)), total=0.625),
        ),
    }
    return Decision(**(values | changes))


def a_remote_decision(**changes: Any) -> Decision:
    remote = {
        "path": Path.REMOTE,
        "prefill_worker": WorkerId("prefill-0"),
        "reason": Reason.LONG_EFFECTIVE_ISL,
    }
    return a_decision(**(remote | changes))


def a_refusal(kind: RefusalKind = RefusalKind.NO_DECODE_WORKER) -> Refusal:
    return Refusal(request_id=RequestId("r-1"), kind=kind, words="no worker takes requests")


def an_outcome(**changes: Any) -> Outcome:
    values: dict[str, Any] = {
        "kind": OutcomeKind.OK,
        "status": 200,
        "duration_s": 4.0,
        "ttft_s": 0.5,
        "tpot_s": 0.03,
        "input_tokens": 1000,
        "cached_tokens": 250,
        "output_tokens": 120,
        "attained": True,
    }
    return Outcome(**(values | changes))


def a_failure(kind: OutcomeKind = OutcomeKind.UPSTREAM_ERROR, **changes: Any) -> Outcome:
    nothing = dict.fromkeys(("ttft_s", "tpot_s", "input_tokens", "cached_tokens", "output_tokens", "attained"))
    return an_outcome(**({"kind": kind, "status": 502, **nothing} | changes))


def a_worker(name: str, **changes: Any) -> WorkerState:
    values: dict[str, Any] = {
        "worker_id": WorkerId(name),
        "role": Role.DECODE,
        "state": HealthState.CLOSED,
        "draining": False,
        "inflight_requests": 3,
        "inflight_tokens": 4096,
        "queue_depth": 2,
        "kv_used_ratio": 0.25,
        "sample_age_s": 0.5,
        "prefill_price_ratio": 1.0,
        "decode_price_ratio": 1.0,
    }
    return WorkerState(**(values | changes))


@dataclass
class FakeState:
    """The core's state, set by the test."""

    fleet: Sequence[WorkerState] = ()
    calibration: Mapping[str, float] = field(default_factory=dict)
    burn: Mapping[tuple[str, str], float] = field(default_factory=dict)
    targets: Sequence[SloTarget] = (CHAT, BATCH)
    objective: float = 0.95

    def workers(self) -> Sequence[WorkerState]:
        return self.fleet

    def prefix_blocks(self) -> int:
        return 42

    def conversations(self) -> Mapping[str, int]:
        return {"warm": 5, "cold": 1}

    def waiting_requests(self) -> int:
        return 2

    def bytes_per_token(self) -> Mapping[str, float]:
        return self.calibration

    def burn_rates(self) -> Mapping[tuple[str, str], float]:
        return self.burn

    def slos(self) -> Sequence[SloTarget]:
        return self.targets

    def slo_objective(self) -> float:
        return self.objective

    def policy(self) -> tuple[str, str]:
        return "isl", "7"


def scrape(metrics: Metrics, readers: Readers | None = None) -> dict[str, Metric]:
    """What a Prometheus would read, by family name."""
    exposition = Exposition(metrics, readers or Readers(state=FakeState()), version="1.2.3", commit="abc")
    body, _ = exposition.render()
    return {family.name: family for family in text_string_to_metric_families(body.decode())}


def value(families: Mapping[str, Metric], sample_name: str, **labels: str) -> float | None:
    """The value of the one sample with this name and exactly these labels; None where there is none."""
    found = [
        sample.value
        for family in families.values()
        for sample in family.samples
        if sample.name == f"tidegate_{sample_name}" and sample.labels == labels
    ]
    assert len(found) <= 1
    return found[0] if found else None


def label_values(families: Mapping[str, Metric], family_name: str, label: str) -> set[str]:
    """The values of one label over all samples of a family."""
    return {sample.labels[label] for sample in families[f"tidegate_{family_name}"].samples}
