"""What a conversation and its sender say about the next answer [D].

The rule of this module: an absent figure is NaN, which is what the trees were taught to read as missing; zero means
zero.
"""

import math
from collections.abc import Sequence

from gateway.core.output_length.facts import MAX_PREVIOUS_OUTPUTS, PromptFacts

HISTORY_FEATURES = (
    "previous_outputs",
    "last_log_output",
    "mean_log_output",
    "recent_log_output",
    "largest_log_output",
    "smallest_log_output",
    "spread_log_output",
    "log_prompt_tokens",
    "log_added_tokens",
    "after_tool",
)
RECENT_RATIO = 0.4
"""Weight of each newer output in the fading mean."""
_NONE = (0.0, math.nan, math.nan, math.nan, math.nan, math.nan, math.nan)


def history_features(facts: PromptFacts) -> tuple[float, ...]:
    """The features of `HISTORY_FEATURES`; logarithms are of one plus the figure in tokens."""
    before = facts.previous_prompt_tokens
    added = math.nan if before is None else math.log1p(max(0.0, facts.prompt_tokens - before))
    return (
        *_outputs(facts.previous_outputs[-MAX_PREVIOUS_OUTPUTS:]),
        math.log1p(facts.prompt_tokens),
        added,
        math.nan if facts.after_tool is None else float(facts.after_tool),
    )


def _outputs(outputs: Sequence[int]) -> tuple[float, ...]:
    if not outputs:
        return _NONE
    logs = [math.log1p(tokens) for tokens in outputs]
    count, recent = len(logs), logs[0]
    for log in logs:
        recent += RECENT_RATIO * (log - recent)
    mean = sum(logs) / count
    spread = math.sqrt(sum((log - mean) ** 2 for log in logs) / count)
    return float(count), logs[-1], mean, recent, max(logs), min(logs), spread
