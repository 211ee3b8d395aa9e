import math

import numpy as np

from gateway.core.output_length.features import FEATURES, FeatureSpec, Level
from gateway.core.output_length.predictor import Head, Line, OutputLengthModel
from gateway.core.output_length.terms import LAYOUT, TextScore
from gateway.core.output_length.trees import Ensemble

SAME = Line(intercept=0.0, slope=1.0)
BUCKETS = 64


def spec(*, text: TextScore | None = None, tenants: dict[int, float] | None = None) -> FeatureSpec:
    return FeatureSpec(
        models={"m": Level(log_tokens=math.log(100.0), spread=0.5)},
        unknown=Level(log_tokens=math.log(300.0), spread=1.0),
        tenants=tenants or {},
        text=text,
    )


def text_score(*, weight: float = 0.1, trust: float = 1.0, layout: float = 0.0) -> TextScore:
    return TextScore(
        weights=np.full(BUCKETS, weight, dtype=np.float32),
        squares=np.ones(BUCKETS, dtype=np.float32),
        layout=(layout,) * len(LAYOUT),
        intercept=0.25,
        trust=trust,
    )


def head(margin: float = 0.0, *, start: Line | None = None) -> Head:
    trees = Ensemble(features=len(FEATURES), base_margin=margin, trees=())
    return Head(start=start or Line(intercept=0.0, slope=1e-9), trees=trees, end=SAME)


def model(*, medium: float = 0.0, longer: float = -1.0, text: TextScore | None = None) -> OutputLengthModel:
    return OutputLengthModel(
        spec=spec(text=text), at_least_medium=head(medium), at_least_long=head(longer), log_length=head(0.0, start=SAME)
    )
