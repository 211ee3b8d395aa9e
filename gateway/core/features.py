"""From facts to token estimates.

The rule of this module: the prompt is never tokenised. Text is counted in bytes and turned into tokens by
the model's calibrated ratio; token ids are exact.
"""

import math

from gateway.core.calibration import Calibration
from gateway.core.output_length.carried import predicted_tokens
from gateway.core.output_length.predictor import OutputLengthModel
from gateway.core.record import record
from gateway.core.types import RequestFacts

BYTES_PER_TOKEN_ID = 4
"""Block hashes over token ids take each id as four bytes."""


@record
class Estimate:
    """One request in tokens."""

    isl_tokens: int
    """The prompt: exact for token ids, estimated for text."""
    tokens_per_block: float
    """How many tokens one hash of a block chain stands for."""
    osl_tokens: float
    """Predicted output of one choice."""
    osl_predicted: bool = False
    """Whether an output-length model predicted it; else it is the rolling mean."""

    def hit_tokens(self, hit_blocks: int) -> int:
        """Tokens in so many leading blocks, at most the whole prompt."""
        return min(self.isl_tokens, int(hit_blocks * self.tokens_per_block))


def estimate(facts: RequestFacts, calibration: Calibration, output_length: OutputLengthModel | None = None) -> Estimate:
    """Turn a request's bytes into tokens.

    The output is what the output-length model expects of the request's features, or without one, or with features
    that were made for another one, the language model's rolling mean; either is capped by the request's own limit
    (methods.md 1.3).
    """
    predicted, osl = None, 0.0
    if facts.endpoint.generates:
        predicted = predicted_tokens(output_length, facts.output_features, facts.max_output_tokens)
        osl = _mean_osl(facts, calibration) if predicted is None else predicted
    if facts.prompt_token_ids is not None:
        return Estimate(facts.prompt_token_ids, facts.block_bytes / BYTES_PER_TOKEN_ID, osl, predicted is not None)
    ratio = calibration.bytes_per_token(facts.model)
    isl = math.ceil(facts.prompt_bytes / ratio)
    return Estimate(isl, facts.block_bytes / ratio, osl, predicted is not None)


def _mean_osl(facts: RequestFacts, calibration: Calibration) -> float:
    mean, most = calibration.osl_tokens(facts.model), facts.max_output_tokens
    return mean if most is None or mean <= most else float(most)
