import math

import pytest

from gateway.core.output_length.facts import PromptFacts
from gateway.core.output_length.features import FEATURES, extract
from gateway.core.output_length.own_line import SHARED, OwnLine, position
from gateway.core.output_length.predictor import Head, Line
from tests.core.output_length.predictor_factories import head, spec

LINE = OwnLine(intercept=1.0, slope=0.5, weights=(2.0, 4.0, 8.0), centers=(math.log(101.0), 0.0, 0.0))
STANDING = PromptFacts(
    text="", prompt_tokens=100.0, model="m", previous_outputs=(9, 9), previous_prompt_tokens=20.0, after_tool=True
)


def at(line: OwnLine, facts: PromptFacts, margin: float = 3.0) -> float:
    return line.at(margin, extract(facts, spec()))


def test_a_line_adds_where_the_conversation_stands() -> None:
    assert at(LINE, STANDING) == pytest.approx(1.0 + 0.5 * 3.0 + 4.0 * math.log(3.0) + 8.0, rel=1e-6)


def test_what_is_not_known_adds_nothing() -> None:
    unknown = PromptFacts(text="", prompt_tokens=100.0, model="m")
    assert math.isnan(position(extract(unknown, spec()))[2])
    assert at(LINE, unknown) == pytest.approx(1.0 + 0.5 * 3.0, abs=1e-5)


def test_the_shared_line_changes_nothing() -> None:
    assert at(SHARED, STANDING, 3.25) == 3.25


def test_only_the_model_that_has_a_line_is_moved_by_it() -> None:
    features = list(extract(STANDING, spec()))
    same = head(0.0, start=Line(intercept=0.0, slope=1.0))
    moved = Head(start=same.start, trees=same.trees, end=same.end, own={3: LINE})
    for number, line in ((3.0, LINE), (2.0, SHARED), (-1.0, SHARED)):
        features[FEATURES.index("model_number")] = number
        assert moved.at(2.0, tuple(features)) == line.at(same.at(2.0, tuple(features)), features)
