"""What a comparison found, as it is written to a file.

The rule of this module: data only, of plain values. Every figure of a report stands here too.
"""

import msgspec

from loadtest.compare.bootstrap import Interval


class ArmResult(msgspec.Struct, frozen=True, kw_only=True):
    """One arm of one cell."""

    name: str
    is_learned: bool
    words: str
    """Its parameters."""
    learned_ratio: float
    """Attainment on the learning half."""
    figures: dict[str, Interval]
    """On the judging half; see `bootstrap.METRICS`."""
    beside: dict[str, dict[str, Interval]]
    """By baseline and metric: shares less the baseline's, latencies as a share of the baseline's, less 1."""
    bundle: str | None = None
    """The version of the policy bundle that holds it."""


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch of learning while serving."""

    phase: str
    requests: int
    attained: float | None


class Course(msgspec.Struct, frozen=True, kw_only=True):
    """How an arm was learned."""

    arm: str
    requests: int
    """Served to learn it."""
    scan_attained: float | None = None
    run_attained: float | None = None
    missed_for_scanning: float | None = None
    """SLOs missed beyond what the finished table would have missed."""
    steps: list[Step] = []


class Cluster(msgspec.Struct, frozen=True, kw_only=True):
    """A cluster's centre in tokens, and how often its requests prefill locally: 0 or 1, or between over regimes."""

    prompt: float
    prefill_uncached: float
    decode_uncached: float
    output: float
    local: float


class CellResult(msgspec.Struct, frozen=True, kw_only=True):
    """One cell."""

    workload: str
    pools: str
    engine: str
    slo: str
    slo_ttft_s: float | None
    slo_tpot_s: float | None
    load: float
    scale: float
    requests_per_s: float
    """Of the judging half, first seed."""
    saturation_ratio: float
    """What the tuned rule attained on the learning half at a load of 100 %."""
    requests: int
    """Of each half."""
    seeds: int
    stand_ins: list[str]
    """Files that were not there, in whose place a fitted generator stood."""
    best: str
    """The learned arm that did best on the learning half."""
    strongest: str
    """The rule that attained most on the learning half, whoever's it is."""
    arms: list[ArmResult]
    courses: list[Course]
    clusters: dict[str, list[Cluster]]
    """By arm, of tables."""
    tried: int
    """Rules among which Dynamo's was tuned."""

    @property
    def label(self) -> str:
        """`workload/pools/engine/slo/LOAD`."""
        return f"{self.workload}/{self.pools}/{self.engine}/{self.slo}/{self.load:.0%}"

    def arm(self, name: str) -> ArmResult:
        """An arm by its name."""
        return next(arm for arm in self.arms if arm.name == name)


class Skipped(msgspec.Struct, frozen=True, kw_only=True):
    """A place that could not be compared."""

    place: str
    why: str


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One arm under one condition of the `limits` preset."""

    group: str
    """What is varied."""
    condition: str
    arm: str
    figures: dict[str, Interval]
    beside_rule: dict[str, Interval]
    """Beside the tuned rule under the same condition: shares less, latencies as a share less 1; empty for itself."""


class DecisionCost(msgspec.Struct, frozen=True, kw_only=True):
    """What a part of a decision takes, in microseconds of this machine."""

    part: str
    p50_us: float
    p99_us: float
    calls: int


class LiveLap(msgspec.Struct, frozen=True, kw_only=True):
    """The same requests once more, on a running fleet."""

    phase: str
    arm: str
    requests: int
    met: int
    ttft_p90_s: float
    tpot_p90_s: float
    words: str
    """The arm's parameters."""
    sent_late_s: float
    """99th percentile of how late the client sent, in real seconds."""
    loop_late_s: float
    """The most that the gateway's event loop was late, in real seconds."""


class Exploration(msgspec.Struct, frozen=True, kw_only=True):
    """What trying policies on live requests cost."""

    requests: int
    """Served by policies that were tried."""
    attained: float
    """The share of them that met the SLO."""
    missed: int
    others: dict[str, float]
    """The share on the same requests by what else might have served them."""
    missed_beyond: dict[str, float]
    """SLOs missed beyond what each of those would have missed; negative where trying did better."""


class LiveArm(msgspec.Struct, frozen=True, kw_only=True):
    """One arm on the judging half, on a running fleet."""

    name: str
    words: str
    figures: dict[str, Interval]
    beside_rule: dict[str, Interval]
    """Shares less the tuned rule's, latencies as a share of its less 1; empty for itself."""
    by_round: list[float]
    """Attainment."""
    simulated: dict[str, float]
    """Attainment and tails of the same requests in the simulator."""


class LiveResult(msgspec.Struct, frozen=True, kw_only=True):
    """What learning on a running gateway came to."""

    place: str
    speed: float
    """Engine seconds per real second."""
    scale: float
    requests_per_s: float
    """Of the judging half, in engine seconds."""
    rounds: int
    judge_requests: int
    """Of each round."""
    learn_requests: int
    """Of each lap of learning."""
    tried_rules: int
    """Rules among which Dynamo's was tuned, in the simulator."""
    stand_ins: list[str]
    """Files that were not there, in whose place a fitted generator stood."""
    laps: list[LiveLap]
    exploration: Exploration
    courses: list[Course] = []
    """Of what was learned while serving without laps."""
    arms: list[LiveArm]
    """The tuned rule first, what was learned last."""
    bundle: str | None
    """The version of the policy bundle that holds it."""
    took_s: float
    """Real seconds on the running fleet."""
