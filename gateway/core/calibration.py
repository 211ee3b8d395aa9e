"""Running estimates that turn bytes into tokens and guess output lengths, per model.

The rule of this module: an estimate moves only on numbers that a worker could honestly have sent; anything else is
counted and dropped, so that a hostile or broken worker cannot bend the router.
"""

from dataclasses import dataclass, field

MIN_BYTES_PER_TOKEN = 0.5
MAX_BYTES_PER_TOKEN = 32.0
MAX_OUTPUT_TOKENS = 2**20
"""Of one answer; no engine's context leaves room for more."""


@dataclass(slots=True)
class DecayedRatio:
    """sum(numerator) / sum(denominator) in which old observations fade by `decay` per new one."""

    numerator: float
    denominator: float
    decay: float

    @property
    def value(self) -> float:
        """The current ratio."""
        return self.numerator / self.denominator

    def add(self, numerator: float, denominator: float) -> None:
        """Count one observation."""
        self.numerator = self.numerator * self.decay + numerator
        self.denominator = self.denominator * self.decay + denominator


@dataclass(slots=True, kw_only=True)
class Calibration:
    """Bytes per token and output length, by model, and the output length of all models together.

    Bytes per token is a ratio of sums, so that long prompts, which matter most, weigh most. The output length is a
    rolling mean (methods.md 1.3: the fallback of a learned predictor).
    """

    prior_bytes_per_token: float = 4.0
    prior_tokens: float = 2_000.0
    """How many tokens of evidence the prior is worth."""
    prior_osl_tokens: float = 256.0
    prior_requests: float = 10.0
    decay: float = 0.995
    """Per observation: a memory of about 200 requests."""
    rejected: int = 0
    """Observations dropped because no honest worker could have sent them."""
    _bytes: dict[str, DecayedRatio] = field(default_factory=dict)
    _osl: dict[str, DecayedRatio] = field(default_factory=dict)
    _osl_of_all: DecayedRatio = field(init=False)

    def __post_init__(self) -> None:
        self._osl_of_all = self._prior_osl()

    def bytes_per_token(self, model: str) -> float:
        """Estimated bytes of canonical prompt text per token."""
        known = self._bytes.get(model)
        return self.prior_bytes_per_token if known is None else known.value

    def osl_tokens(self, model: str) -> float:
        """The rolling mean of output tokens."""
        known = self._osl.get(model)
        return self.prior_osl_tokens if known is None else known.value

    @property
    def mean_osl_tokens(self) -> float:
        """The rolling mean of output tokens, of whatever model."""
        return self._osl_of_all.value

    def models(self) -> dict[str, float]:
        """Bytes per token of every calibrated model."""
        return {model: ratio.value for model, ratio in self._bytes.items()}

    def saw_prompt(self, model: str, prompt_bytes: int, input_tokens: int) -> None:
        """Learn from a worker's count of a text prompt without media."""
        if input_tokens <= 0 or not (MIN_BYTES_PER_TOKEN <= prompt_bytes / input_tokens <= MAX_BYTES_PER_TOKEN):
            self.rejected += 1
            return
        ratio = self._bytes.get(model)
        if ratio is None:
            prior = DecayedRatio(self.prior_bytes_per_token * self.prior_tokens, self.prior_tokens, self.decay)
            ratio = self._bytes[model] = prior
        ratio.add(prompt_bytes, input_tokens)

    def saw_output(self, model: str, output_tokens: int, max_output_tokens: int | None) -> None:
        """Learn from an answer's length; a count above the request's own limit is not believed."""
        limit = MAX_OUTPUT_TOKENS if max_output_tokens is None else min(max_output_tokens, MAX_OUTPUT_TOKENS)
        if not 0 <= output_tokens <= limit:
            self.rejected += 1
            return
        ratio = self._osl.get(model)
        if ratio is None:
            ratio = self._osl[model] = self._prior_osl()
        ratio.add(output_tokens, 1.0)
        self._osl_of_all.add(output_tokens, 1.0)

    def _prior_osl(self) -> DecayedRatio:
        return DecayedRatio(self.prior_osl_tokens * self.prior_requests, self.prior_requests, self.decay)
