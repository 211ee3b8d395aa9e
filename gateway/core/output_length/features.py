"""From a request to the numbers that the model looks at: the one way for training and for serving.

What is measured needs no model (`measure`); a few columns need learned figures (`learned`); `extract` puts both
together. Training uses the same three functions, with text scores that it made without the row at hand.

The rule of this module: nothing else makes feature vectors. A change of a feature's meaning or place is a new
`FEATURE_VERSION`, and a model made for another version is refused.
"""

import math
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from zlib import crc32

from gateway.core.output_length.facts import PromptFacts
from gateway.core.output_length.history import HISTORY_FEATURES, history_features
from gateway.core.output_length.prompt_features import prompt_features
from gateway.core.output_length.shape import SHAPE_FEATURES, shape_features
from gateway.core.output_length.terms import LAYOUT, TextScore, term_buckets
from gateway.core.output_length.text import Reading, read_text

FEATURE_VERSION = 2
LEARNED = ("model_log_tokens", "model_spread", "model_number", "tenant_score", "text_score")
MEASURED = (*LAYOUT, *HISTORY_FEATURES, "tools")
FEATURES = (*LEARNED, *MEASURED)
MODEL_LOG_TOKENS = FEATURES.index("model_log_tokens")
MODEL_SPREAD = FEATURES.index("model_spread")
MODEL_NUMBER = FEATURES.index("model_number")
TEXT_SCORE = FEATURES.index("text_score")
_NO_SHAPE = (math.nan,) * len(SHAPE_FEATURES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """How long a model's answers are as a rule."""

    log_tokens: float
    """Logarithm of the mean."""
    spread: float
    """Standard deviation of the logarithm of one plus the length; above zero."""
    number: int = -1
    """Under which heads keep the model's own line; below zero where there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureSpec:
    """What was learned that features are made with."""

    models: Mapping[str, Level]
    unknown: Level
    """Stands for a model that was not in the training data."""
    tenants: Mapping[int, float] = field(default_factory=dict)
    """Mean standardised length by `tenant_hash`."""
    text: TextScore | None = None


def tenant_hash(tenant: str) -> int:
    """The number that stands for a tenant in a model file, so that its name does not."""
    return crc32(tenant.encode("utf-8", "surrogatepass"))


def extract(facts: PromptFacts, spec: FeatureSpec) -> tuple[float, ...]:
    """The features of `FEATURES`, rounded to 32-bit floats as the trees compare them; NaN where one is missing."""
    read = read_text(facts.text)
    tenant = None if facts.tenant is None else tenant_hash(facts.tenant)
    measured = measure(facts, read)
    score = None
    if spec.text is not None and read.text:
        score = spec.text.of(term_buckets(read, spec.text.weights.size), measured[: len(LAYOUT)])
    return joined(learned(facts.model, tenant, score, spec), measured)


def measure(facts: PromptFacts, read: Reading) -> tuple[float, ...]:
    """The features of `MEASURED`; `read` is what was read of the facts' text."""
    return (
        *prompt_features(read, facts.prompt_tokens),
        *(shape_features(read) if read.text else _NO_SHAPE),
        *history_features(facts),
        float(facts.tools),
    )


def learned(model: str, tenant: int | None, text_score: float | None, spec: FeatureSpec) -> tuple[float, ...]:
    """The features of `LEARNED`; `tenant` is its hash."""
    level = spec.models.get(model, spec.unknown)
    return (
        level.log_tokens,
        level.spread,
        float(level.number),
        math.nan if tenant is None else spec.tenants.get(tenant, math.nan),
        math.nan if text_score is None else text_score,
    )


def joined(learned_values: tuple[float, ...], measured: tuple[float, ...]) -> tuple[float, ...]:
    """A vector of `FEATURES`, each rounded to a 32-bit float."""
    return tuple(array("f", (*learned_values, *measured)))
