"""How a predictor is trained.

The rule of this module: every number of the training stands here.
"""

from dataclasses import dataclass, field

from gateway.core.output_length.features import FEATURES
from gateway.core.output_length.history import HISTORY_FEATURES
from gateway.core.output_length.prompt_features import PROMPT_FEATURES
from gateway.core.output_length.shape import SHAPE_FEATURES


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeOptions:
    """Of one boosted ensemble; small and slow trees, since labelled prompts are few [D].

    The paper takes 300 trees of depth 6 at a rate of 0.1 [F].
    """

    trees: int = 60
    depth: int = 3
    rate: float = 0.06
    min_child_weight: float = 6.0
    row_share: float = 0.8
    column_share: float = 0.7
    l2: float = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainOptions:
    """Of the whole predictor."""

    columns: frozenset[str] = frozenset(FEATURES)
    """Features that trees may look at."""
    trees: TreeOptions = field(default_factory=TreeOptions)
    terms: bool = True
    """Whether the text score looks at words."""
    text_penalty: float = 0.3
    """L2 penalty of the text score's weights."""
    folds: int = 5
    """Inner folds: text scores and calibrations of a row come from models that did not see its group."""
    level_rows: float = 20.0
    """Rows that the pooled level counts when a model's own is estimated."""
    tenant_rows: float = 50.0
    """Likewise for a tenant's score, towards zero."""
    own_priors: tuple[float, ...] = (1.0, 10.0, 100.0)
    """Rows that may speak for the shared answer against a model's own line; inner folds choose. None: no own lines."""
    own_rows: int = 100
    """Fewer of a model make no line of its own."""
    seed: int = 0


PAPER = TrainOptions(columns=frozenset(PROMPT_FEATURES), own_priors=())
"""The paper's 19 features and no others, by trees alone."""
WITHOUT = {
    "text score": TrainOptions(columns=frozenset(FEATURES) - {"text_score"}),
    "hashed terms": TrainOptions(terms=False),
    "the 19 features": TrainOptions(columns=frozenset(FEATURES) - frozenset(PROMPT_FEATURES)),
    "layout": TrainOptions(columns=frozenset(FEATURES) - frozenset(SHAPE_FEATURES)),
    "history": TrainOptions(columns=frozenset(FEATURES) - frozenset(HISTORY_FEATURES)),
    "own lines": TrainOptions(own_priors=()),
}
"""What an ablation leaves out, one at a time; from the text score the 19 features and the layout are not taken away."""
OF_TEXT = frozenset({"text score", "hashed terms", "layout"})
"""Parts that say nothing without text."""
