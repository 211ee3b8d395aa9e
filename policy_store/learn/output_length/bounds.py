"""What is asked of the predictor.

The rule of this module: every bound stands here, by data set and model; a data set that is not there has none.
"""

from collections.abc import Mapping
from types import MappingProxyType

RANKING: Mapping[tuple[str, str], float] = MappingProxyType(
    {
        ("arena_hard", "o3-mini-2025-01-31"): 0.72,
        ("arena_hard", "gpt-4-0314"): 0.72,
        ("arena_hard", "gpt-4-0613"): 0.65,
        ("miniswe", "miniswe"): 0.65,
        ("magagent", "magagent"): 0.65,
    }
)
"""Least ranking accuracy."""
RANKING_OF_SET: Mapping[str, float] = MappingProxyType({"claude_code": 0.65})
"""Least for every model of a data set that has enough rows to be judged."""
ABOVE_LENGTH: Mapping[str, float] = MappingProxyType(
    {"arena_hard": 0.05, "miniswe": 0.05, "magagent": 0.05, "claude_code": 0.05}
)
"""By how much every model's ranking must be above that of the prompt's length alone."""
PAPER_RANKING = (0.763, 0.956)
"""The paper's on ShareGPT and LMSYS [F], which are not at hand: no bound."""


def least(data_set: str, model: str, length_alone: float) -> float | None:
    """The ranking accuracy that is asked for, beside that of the prompt's length alone; None where nothing is."""
    asked = [RANKING.get((data_set, model)), RANKING_OF_SET.get(data_set)]
    if data_set in ABOVE_LENGTH:
        asked.append(length_alone + ABOVE_LENGTH[data_set])
    known = [bound for bound in asked if bound is not None]
    return max(known, default=None)
