"""Synthetic requests whose output length follows from their words and from earlier answers."""

import os
from pathlib import Path

import numpy as np

from gateway.core.output_length.facts import PromptFacts
from policy_store.learn.output_length.options import TrainOptions, TreeOptions
from policy_store.learn.output_length.rows import LengthRow, LengthRows, columns, row_of

SHARED = Path(os.environ.get("TIDEGATE_SHARED", Path(__file__).parents[5] / "shared"))
DATA = SHARED / "data"
SMALL = TrainOptions(trees=TreeOptions(trees=12, depth=3), folds=3)
"""Quick to train."""
_TOPICS = tuple(f"topic{number}" for number in range(40))
_LENGTHS = {"define": 60.0, "describe": 350.0, "implement": 1300.0}


def prompts(count: int, *, models: tuple[str, ...] = ("terse", "wordy"), seed: int = 0) -> list[LengthRow]:
    """`count` prompts answered by each model; the second takes twice as many tokens."""
    rng = np.random.default_rng(seed)
    rows = []
    for number in range(count):
        verb = rng.choice(list(_LENGTHS))
        words = " ".join(rng.choice(_TOPICS, size=int(rng.integers(3, 30))))
        for place, model in enumerate(models):
            tokens = _LENGTHS[verb] * (1 + place) * float(rng.lognormal(0.0, 0.3))
            facts = PromptFacts(text=f"Please {verb} {words}", prompt_tokens=len(words) / 4, model=model, tenant="t")
            rows.append(row_of(facts, max(1, round(tokens)), f"p{number}"))
    return rows


def sessions(count: int, *, seed: int = 0) -> list[LengthRow]:
    """Conversations without text, each with a length of answers of its own."""
    rng = np.random.default_rng(seed)
    rows = []
    for number in range(count):
        usual, outputs = float(rng.lognormal(5.5, 1.0)), []
        for turn in range(8):
            facts = PromptFacts(
                text="", prompt_tokens=100.0 * (turn + 1), model="agent", previous_outputs=tuple(outputs),
                previous_prompt_tokens=100.0 * turn if turn else None, after_tool=turn > 0,
            )  # fmt: skip
            outputs.append(max(1, round(usual * float(rng.lognormal(0.0, 0.2)))))
            rows.append(row_of(facts, outputs[-1], f"s{number}"))
    return rows


def prompt_rows(count: int = 120, **how: int) -> LengthRows:
    return columns(prompts(count, **how))
