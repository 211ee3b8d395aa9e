"""SLOs as people write them, and whether a record met one.

The rule of this module: the gateway's own rule judges; the one difference is that to a client every failure is a
miss, a refusal too.
"""

import re

from gateway.core.slo import attained
from gateway.core.types import OutcomeKind, SloTarget
from loadtest.client.records import Record

_TERM = re.compile(r"(ttft|tpot)=(\d+(?:\.\d+)?)(ms|s)")
_SECONDS = {"s": 1.0, "ms": 1e-3}


def parse_slo(text: str) -> SloTarget:
    """Reads `ttft=2s,tpot=40ms`; a bound that is left out does not apply. Raises ValueError for anything else."""
    bounds_s: dict[str, float] = {}
    for term in text.split(","):
        match = _TERM.fullmatch(term.strip())
        if match is None or match[1] in bounds_s:
            raise ValueError(f"not an SLO: {text!r}; write ttft=2s,tpot=40ms or one of the two")
        bounds_s[match[1]] = float(match[2]) * _SECONDS[match[3]]
    return SloTarget(name="run", ttft_s=bounds_s.get("ttft"), tpot_s=bounds_s.get("tpot"))


def slo_words(slo: SloTarget) -> str:
    """The SLO for a heading, such as `TTFT ≤ 2 s, TPOT ≤ 40 ms`."""
    terms = []
    if slo.ttft_s is not None:
        terms.append(f"TTFT ≤ {slo.ttft_s:g} s")
    if slo.tpot_s is not None:
        terms.append(f"TPOT ≤ {slo.tpot_s * 1000:g} ms")
    return ", ".join(terms) or "no bounds"


def met_slo(record: Record, slo: SloTarget) -> bool | None:
    """Whether a request met the SLO; None where the run was stopped before that could be said."""
    return attained(
        slo,
        kind=_outcome(record),
        duration_s=record.e2e_s or 0.0,
        ttft_s=record.ttft_s,
        tpot_s=record.tpot_s,
        output_tokens=record.output_tokens,
    )


def _outcome(record: Record) -> OutcomeKind:
    if record.ok:
        return OutcomeKind.OK
    return OutcomeKind.CANCELLED if record.cancelled else OutcomeKind.UPSTREAM_ERROR
