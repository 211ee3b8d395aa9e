"""How a request's features get from where its text is read to where its answer's length is predicted.

The rule of this module: text goes in, numbers come out, and they name the model that they were made for. Facts are
written to journals, so a missing feature is None there and NaN only where the trees look.
"""

import math
from collections.abc import Callable, Container
from dataclasses import dataclass

from gateway.core.output_length.facts import PromptFacts
from gateway.core.output_length.features import FEATURES, extract
from gateway.core.output_length.predictor import OutputLengthModel
from gateway.core.types import OutputFeatures


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptReader:
    """What reading requests for an output-length model takes."""

    model: OutputLengthModel
    bytes_per_token: Callable[[str], float]
    """By the name of a language model."""
    tenant: str | None = None
    """Who sends the request that is to be read."""
    renamed: Container[str] = frozenset()
    """Names of language models under which nothing is read: such a request is read again under its model's own."""

    def features(self, prompt: PromptFacts) -> OutputFeatures:
        """The features of a request whose text is at hand."""
        values = extract(prompt, self.model.spec)
        kept = tuple(value if math.isfinite(value) else None for value in values)
        return OutputFeatures(predictor=self.model.version, values=kept)


def predicted_tokens(
    model: OutputLengthModel | None, features: OutputFeatures | None, max_output_tokens: int | None
) -> float | None:
    """The expected length of one answer, at most the request's limit; None where it cannot be predicted.

    It cannot without a model or features, nor where the features were made for another model than this.
    """
    if model is None or features is None:
        return None
    if features.predictor != model.version or len(features.values) != len(FEATURES):
        return None
    values = tuple(math.nan if value is None else value for value in features.values)
    return model.predict(values, max_output_tokens).expected_tokens
