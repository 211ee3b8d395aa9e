"""What a comparison of conversations found, as it is written to a file.

The rule of this module: data only, of plain values. Every figure of the report stands here too.
"""

import msgspec

from loadtest.compare.bootstrap import Interval


class ArmFigures(msgspec.Struct, frozen=True, kw_only=True):
    """One arm of one cell."""

    name: str
    words: str
    """What it is, and its parameters."""
    figures: dict[str, Interval]
    """See `figures.METRICS`; energy in joules per conversation."""
    beside: dict[str, Interval]
    """Beside the cell's baseline; empty for itself."""
    prefill_busy: float
    decode_busy: float
    local_ratio: float
    cached_ratio: float
    ttft_p95_s: float
    """These five are means over the seeds."""


class CellFigures(msgspec.Struct, frozen=True, kw_only=True):
    """One place at one load."""

    workload: str
    pools: str
    kv_share: float
    baseline: str
    """Of whose saturation the load is a share."""
    saturation_rps: float
    """Turns per second that the baseline keeps up with."""
    load: float
    conversations_rps: float
    """That begin."""
    conversations: int
    """Of each seed."""
    seeds: int
    live_kv_tokens: float
    """Under the baseline: of conversations that have begun and not ended."""
    kv_tokens: int
    """That the decode workers hold together."""
    floor_p50_s: float
    floor_p95_s: float
    """TTFET of the same conversations where nobody waits."""
    arms: list[ArmFigures]
    stand_ins: list[str]

    @property
    def label(self) -> str:
        """`workload/pools`, and what the load is a share of."""
        scarce = "" if self.kv_share == 1.0 else f", KV x {self.kv_share:.2f}"
        return f"{self.workload}/{self.pools} at {self.load:.0%} of '{self.baseline}'{scarce}"

    def arm(self, name: str) -> ArmFigures | None:
        """An arm by its name."""
        return next((arm for arm in self.arms if arm.name == name), None)


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """Something that must come out, and what did."""

    cell: str
    what: str
    required: str
    found: str
    holds: bool


class ConserveReport(msgspec.Struct, frozen=True, kw_only=True):
    """All that was found."""

    is_claim: bool
    claims: list[Claim]
    cells: list[CellFigures]
    weights: dict[str, dict[str, float]]
    """Learned for `combined`, by place."""
    bundles: dict[str, str] = {}
    """The same as policy bundles that were written: their versions, by place."""

    @property
    def holds(self) -> bool:
        """Whether every claim does."""
        return all(claim.holds for claim in self.claims)
