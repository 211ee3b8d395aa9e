"""`python -m loadtest.bench_output_length`: what predicting an output's length costs, step by step.

The rule of this module: the gateway's own functions on prompts of 2 KB, medians and tails over many runs in one
process; a step's bound stands beside it, and exit status 1 says that a median missed it.
"""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.table import Column, Table

from gateway.core.output_length.facts import PromptFacts
from gateway.core.output_length.features import extract, measure
from gateway.core.output_length.predictor import OutputLengthModel
from gateway.core.output_length.prompt_features import prompt_features
from gateway.core.output_length.text import read_text
from policy_store.learn.output_length.rows import columns, row_of
from policy_store.learn.output_length.train import train
from policy_store.output_length_file import read_output_length

PROMPT_BYTES = 2048
PROMPTS = 300
RUNS = 10
PAPER_BOUND_US = 40.0
TEXT_BOUND_US = 200.0
MICRO = 1e6
_SENTENCE = "please explain the table of errors, then write a list; how and why a user reads it because of data in "
_WORDS = _SENTENCE.split()


def prompts(count: int) -> list[str]:
    """Prompts of `PROMPT_BYTES` made of common words and rare ones."""
    rng = np.random.default_rng(0)
    made = []
    for _ in range(count):
        common, rare = rng.choice(_WORDS, size=400), rng.integers(0, 5000, size=400)
        words = (str(word) if number % 3 else f"w{number}" for word, number in zip(common, rare, strict=True))
        made.append(" ".join(words)[:PROMPT_BYTES])
    return made


def synthetic_model(texts: Sequence[str]) -> OutputLengthModel:
    """A predictor of the default size, learned from lengths that follow from the words."""
    rng = np.random.default_rng(1)
    rows = []
    for number, text in enumerate(texts):
        tokens = 80.0 + 40.0 * text.count("explain") * float(rng.lognormal(0.0, 0.3)) + 20.0 * text.count("list")
        rows.append(row_of(_facts(text), round(tokens), f"p{number}"))
    return train(columns(rows)).model


def measured(call: Callable[[str], object], texts: Sequence[str]) -> tuple[float, float]:
    """P50 and P99 in microseconds, after one round that is not counted."""
    times = []
    for run in range(RUNS + 1):
        for text in texts:
            began = perf_counter()
            call(text)
            if run:
                times.append(perf_counter() - began)
    return float(np.percentile(times, 50)) * MICRO, float(np.percentile(times, 99)) * MICRO


def main(
    *,
    predictor: Annotated[Path | None, typer.Option(help="Folder of a predictor; by default one is learned.")] = None,
) -> None:
    """Measure and print; exit status 1 where a median misses its bound."""
    texts = prompts(PROMPTS)
    model = synthetic_model(texts) if predictor is None else read_output_length(predictor)
    vectors = {text: extract(_facts(text), model.spec) for text in texts}
    steps: list[tuple[str, Callable[[str], object], float | None]] = [
        ("reading the text", read_text, None),
        ("the 19 features, reading included", _nineteen, PAPER_BOUND_US),
        ("all that is measured, reading included", _all_measured, None),
        ("all features with text terms (extract)", partial(_extracted, model), TEXT_BOUND_US),
        ("three ensembles and calibration (predict)", lambda text: model.predict(vectors[text]), None),
        ("extract and predict", lambda text: model.predict(_extracted(model, text)), TEXT_BOUND_US),
    ]
    right = ("P50", "P99", "bound")
    table = Table("step", *(Column(name, justify="right") for name in right), title="2 KB prompts, microseconds")
    met = True
    for name, call, bound in steps:
        median, tail = measured(call, texts)
        met = met and (bound is None or median <= bound)
        table.add_row(name, f"{median:.1f}", f"{tail:.1f}", "-" if bound is None else f"{bound:.0f}")
    Console().print(table)
    raise typer.Exit(not met)


def _facts(text: str) -> PromptFacts:
    return PromptFacts(text=text, prompt_tokens=len(text) / 4, model="bench", previous_outputs=(120, 300, 90))


def _nineteen(text: str) -> object:
    return prompt_features(read_text(text), 512.0)


def _all_measured(text: str) -> object:
    return measure(_facts(text), read_text(text))


def _extracted(model: OutputLengthModel, text: str) -> tuple[float, ...]:
    return extract(_facts(text), model.spec)


if __name__ == "__main__":
    typer.run(main)
