"""What the decision core knows and says.

The rule of this module: data only. Every type is frozen, a `record` to the type checker; every unit is in the name,
and what is not known is `None`, never zero.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import NewType

from gateway.core.conversation.facts import ConversationFacts, TurnKind
from gateway.core.record import record

WorkerId = NewType("WorkerId", str)
RequestId = NewType("RequestId", str)
DecisionId = NewType("DecisionId", str)


class Role(StrEnum):
    """What a worker may be asked to do."""

    PREFILL = "prefill"
    DECODE = "decode"
    BOTH = "both"

    @property
    def prefills(self) -> bool:
        """True where the worker may run the prefill leg of a remote path."""
        return self is not Role.DECODE

    @property
    def decodes(self) -> bool:
        """True where the worker may serve a request to its end."""
        return self is not Role.PREFILL


class Path(StrEnum):
    """Where a request's prefill runs."""

    LOCAL = "local"
    """On the decode worker itself: one leg."""
    REMOTE = "remote"
    """On a prefill worker, whose KV blocks the decode worker then pulls: two legs."""


class Endpoint(StrEnum):
    """What a request asks for, by the route it came in by."""

    CHAT = "chat"
    COMPLETIONS = "completions"
    RESPONSES = "responses"
    MESSAGES = "messages"
    COUNT_TOKENS = "count_tokens"
    EMBEDDINGS = "embeddings"
    POOLING = "pooling"
    SCORE = "score"
    RERANK = "rerank"
    TOKENIZE = "tokenize"
    DETOKENIZE = "detokenize"
    RENDER = "render"
    AUDIO = "audio"

    @property
    def disaggregates(self) -> bool:
        """Whether a prefill/decode hand-off is defined for it."""
        return self is Endpoint.CHAT or self is Endpoint.COMPLETIONS

    @property
    def generates(self) -> bool:
        """Whether it makes tokens: the others hold no KV cache after their one forward pass."""
        return self in (Endpoint.CHAT, Endpoint.COMPLETIONS, Endpoint.RESPONSES, Endpoint.MESSAGES, Endpoint.AUDIO)


@dataclass(frozen=True, slots=True, kw_only=True)
class SloTarget:
    """A latency objective; a bound that is None does not apply."""

    name: str
    ttft_s: float | None
    tpot_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputFeatures:
    """What an output-length model looks at in one request: numbers only, none of its text."""

    predictor: str
    """Version of the model that they were made for; to another one they say nothing."""
    values: tuple[float | None, ...]
    """In the order of `output_length.features.FEATURES`; None where one is missing."""


@record
class RequestFacts:
    """What the gateway read from one request, without its text.

    `block_chains` holds one tuple of chained 64-bit block hashes per prompt: equal leading hashes mean equal
    leading text under the same model, adapter, cache salt and media. Only whole blocks are listed.
    """

    request_id: RequestId
    endpoint: Endpoint
    model: str
    stream: bool = False
    prompt_bytes: int = 0
    """Bytes of text in all prompts; zero where the prompt came as token ids."""
    prompt_token_ids: int | None = None
    """The exact prompt length where the client sent token ids, else None."""
    block_bytes: int = 256
    """Bytes (text) or 4 x tokens (token ids) that one hash of a chain stands for."""
    block_chains: tuple[tuple[int, ...], ...] = ()
    prompts: int = 1
    media_parts: int = 0
    max_output_tokens: int | None = None
    choices: int = 1
    prompt_logprobs: bool = False
    echo_logprobs: bool = False
    conversation: ConversationFacts | None = None
    """None where conversations are of no interest."""
    prefill_from: tuple[WorkerId, ...] | None = None
    """The only prefill workers that this request may use; None leaves the choice to the router."""
    slo_class: str | None = None
    slo_ttft_s: float | None = None
    slo_tpot_s: float | None = None
    output_features: OutputFeatures | None = None
    """None where no output-length model was in force when the request was read, or its answer is not one answer."""


@record
class Features:
    """The four numbers that a path policy looks at, in tokens, and what they were made from."""

    isl_tokens: int
    """Estimated prompt length."""
    prefill_isl_tokens: int
    """Prompt tokens that the best prefill worker would still have to compute."""
    decode_isl_tokens: int
    """Prompt tokens that the best decode worker would still have to compute."""
    osl_tokens: float
    """Predicted output length."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec:
    """A worker as configured or discovered; it does not change while the worker is up."""

    worker_id: WorkerId
    url: str
    role: Role
    models: tuple[str, ...]
    """Model and adapter names that it serves."""
    kv_block_tokens: int | None = None
    kv_total_blocks: int | None = None
    max_batched_tokens: int | None = None
    """The engine's token budget of one step (vLLM's max_num_batched_tokens)."""
    caches_prefixes: bool = True
    """False: no prompt finds there what an earlier one left."""
    splits: bool = False
    """It is a whole graph with an entry for each path: it prefills remotely by itself, in one leg."""


@record
class WorkerSample:
    """One scrape of a worker's own metrics; None where the worker does not report it."""

    at_s: float
    running: int | None = None
    waiting: int | None = None
    kv_used_ratio: float | None = None
    kv_block_tokens: int | None = None
    kv_total_blocks: int | None = None

    def says_the_same_as(self, other: "WorkerSample") -> bool:
        """Whether only the time differs."""
        return (
            self.running == other.running
            and self.waiting == other.waiting
            and self.kv_used_ratio == other.kv_used_ratio
            and self.kv_block_tokens == other.kv_block_tokens
            and self.kv_total_blocks == other.kv_total_blocks
        )


@record
class WorkerView:
    """A worker as one decision sees it: its spec, the gateway's own ledger and the last fresh sample.

    Requests and tokens count what this gateway has in flight; where a fresh sample knows more, the larger
    figure stands. A missing signal is None.
    """

    worker_id: WorkerId
    role: Role
    inflight_requests: int
    resident_requests: int
    """Of them those of which something is here: all but those whose prefill another worker has yet to end."""
    prefill_tokens: int
    """Prompt tokens dispatched here whose prefill has not ended (uncached ones only)."""
    kv_tokens: int
    """KV tokens that requests in flight hold or have reserved here."""
    kv_capacity_tokens: int | None
    kv_used_ratio: float | None
    """Projected share of the KV cache in use; None without a capacity or a sample."""
    kv_resident_ratio: float | None
    """The same without what is reserved for KV whose transfer has not begun."""
    queue_depth: int | None
    """Requests waiting inside the engine, from the last fresh sample."""
    hit_tokens: int
    """Leading prompt tokens of the request in hand that this worker is thought to hold."""
    max_batched_tokens: int | None
    kv_block_tokens: int | None

    def with_hit(self, hit_tokens: int) -> "WorkerView":
        """The same for a request of which so much is cached here; spelled out, for it is made on every decision."""
        return WorkerView(
            self.worker_id,
            self.role,
            self.inflight_requests,
            self.resident_requests,
            self.prefill_tokens,
            self.kv_tokens,
            self.kv_capacity_tokens,
            self.kv_used_ratio,
            self.kv_resident_ratio,
            self.queue_depth,
            hit_tokens,
            self.max_batched_tokens,
            self.kv_block_tokens,
        )


@record
class Candidate:
    """How one worker scored for one leg of a request."""

    worker_id: WorkerId
    scores: tuple[tuple[str, float], ...]
    """(scorer, score in [0,1]) in the policy's order."""
    total: float
    """The weighted mean of the scores, in [0,1]."""


class Reason(StrEnum):
    """Why a path was taken: a closed list, used as a metric label."""

    ALWAYS_LOCAL = "always_local"
    ALWAYS_REMOTE = "always_remote"
    SHORT_EFFECTIVE_ISL = "short_effective_isl"
    LONG_EFFECTIVE_ISL = "long_effective_isl"
    PREFILL_BUSY = "prefill_busy"
    PREFILL_FREE = "prefill_free"
    DECODE_BUSY = "decode_busy"
    UNCACHED_BELOW_MINIMUM = "uncached_below_minimum"
    UNCACHED_ABOVE_MINIMUM = "uncached_above_minimum"
    CLUSTER = "cluster"
    PRICE = "price"
    EXPLORATION = "exploration"
    """Not the path of the request's cluster, to learn what the other one does."""
    GUARD_DECODE_KV = "guard_decode_kv"
    GUARD_LONG_PROMPT = "guard_long_prompt"
    RULE_ENDPOINT = "rule_endpoint"
    RULE_SEVERAL_CHOICES = "rule_several_choices"
    RULE_SEVERAL_PROMPTS = "rule_several_prompts"
    RULE_PROMPT_LOGPROBS = "rule_prompt_logprobs"
    RULE_ECHO_LOGPROBS = "rule_echo_logprobs"
    RULE_UNDER_ONE_BLOCK = "rule_under_one_block"
    RULE_NO_PREFILLER = "rule_no_prefiller"
    RULE_DECODE_EJECTED = "rule_decode_ejected"
    CONVERSATION_BEGINS = "conversation_begins"
    CONVERSATION_GOES_ON = "conversation_goes_on"
    PREFILL_LOST = "prefill_lost"
    """The path was to be remote, and the decode worker prefilled after all."""


@record
class Outlook:
    """What is expected of one route, in seconds."""

    ttft_s: float
    tpot_s: float
    prefill_s: float
    """The prompt's own share of its prefill worker's time."""
    stall_s: float
    """By which a local prefill holds up every sequence that decodes there; 0 on the remote path."""
    crowd_s: float
    """By which one more sequence lengthens every step of the decode worker."""
    prefill_j: float = 0.0
    """Joules beyond idling that the prefill takes, as modelled; 0 where nobody said what the engines draw."""


@record
class PathChoice:
    """A path policy's answer."""

    path: Path
    reason: Reason
    words: str
    """The reason as a sentence with its numbers, for people."""
    propensity: float = 1.0
    """The probability with which the policy picks this path for this input, in (0,1]."""
    cluster: int | None = None
    outlook: Outlook | None = None
    """What is expected of this path, where the policy predicted it."""


@record
class Decision:
    """One request's route, with everything needed to explain it and to learn from it."""

    decision_id: DecisionId
    request_id: RequestId
    model: str
    attempt: int
    """1 for the first try, 2 after one retry elsewhere, and so on."""
    path: Path
    prefill_worker: WorkerId | None
    decode_worker: WorkerId
    policy: str
    policy_version: str
    reason: Reason
    words: str
    propensity: float
    cluster: int | None
    pinned: bool
    """True where its conversation or the response that it goes on from, not the scores, chose the decode worker."""
    features: Features
    prefill_hit_tokens: int
    decode_hit_tokens: int
    slo: SloTarget
    outlook: Outlook | None = None
    """What was expected of the route; None where the workers' prices are not known."""
    osl_predicted: bool = False
    """Whether `features.osl_tokens` is an output-length model's prediction; else it is the model's rolling mean."""
    conversation: str | None = None
    """Its conversation's id in hexadecimal digits; None for a request like any other."""
    turn: TurnKind | None = None
    """What the turn is to its conversation's KV; None without a conversation."""
    prefill_candidates: tuple[Candidate, ...] = ()
    decode_candidates: tuple[Candidate, ...] = ()


class RefusalKind(StrEnum):
    """Why a request was not routed; see `gateway.core.refusals` for status and code."""

    MODEL_NOT_FOUND = "model_not_found"
    NO_DECODE_WORKER = "no_decode_worker"
    EXCLUDED_ALL = "excluded_all"


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A request that the core would not route."""

    request_id: RequestId
    kind: RefusalKind
    words: str


class OutcomeKind(StrEnum):
    """How a request ended: a closed list, used as a metric label."""

    OK = "ok"
    CLIENT_ERROR = "client_error"
    """The worker answered 4xx: the client's doing."""
    UPSTREAM_ERROR = "upstream_error"
    """The worker answered 5xx, could not be reached, or broke off."""
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    """The client left."""
    REFUSED = "refused"


@record
class Outcome:
    """What became of a request, measured at the gateway; times in seconds from its arrival."""

    kind: OutcomeKind
    status: int
    duration_s: float
    ttft_s: float | None = None
    """First content byte to the client."""
    tpot_s: float | None = None
    """(last - first content) / (output tokens - 1); None under two tokens or without a stream."""
    input_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    attained: bool | None = None
    """Whether the SLO was met; None where it could not be judged (cancelled before the SLO had passed)."""
    response_id: str | None = None
    """By which the worker keeps the answer, as the Responses API has it; None where it keeps none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SloDefaults:
    """The SLO classes that a policy knows, and which model uses which."""

    default: SloTarget
    classes: tuple[SloTarget, ...] = ()
    by_model: tuple[tuple[str, str], ...] = field(default=())
    """(model, class name) pairs."""
