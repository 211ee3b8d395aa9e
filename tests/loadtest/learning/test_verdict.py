from io import StringIO

from rich.console import Console

from gateway.core.path.priced import JointPolicy
from gateway.core.path.rules import AlwaysLocal, DynamoRule
from loadtest.learning.paths import Judged, PathResult
from loadtest.learning.prices import fleet_costs
from loadtest.learning.rules import TunedRule
from loadtest.learning.verdict import table_words, verdict_table
from policy_store.bundle import new_bundle
from policy_store.learn.prices import Score
from policy_store.path_models import RegimeModel, model_of
from tests.policy_store.bundle_factories import KMEANS, table


def score(attained: float) -> Score:
    return Score(attained_ratio=attained, ttft_p90_s=12.0 * attained, tpot_p90_s=0.04 * attained)


def test_differences_stand_above_their_intervals_on_a_narrow_screen() -> None:
    names = ("table", "dynamo, tuned", "dynamo, defaults")
    judged = [Judged(name=name, scores=[score(0.9 - 0.2 * n), score(0.8 - 0.1 * n)]) for n, name in enumerate(names)]
    rule = TunedRule(rule=DynamoRule(), score=score(0.7))
    console = Console(width=80, record=True, file=StringIO())
    console.print(verdict_table(PathResult(bundle=new_bundle(table()), rule=rule, judged=judged)))
    shown = console.export_text()
    assert "+15.0 points" in shown
    assert "[-48.5, +78.5]" in shown  # 20 and 10 points, t of 12.7 at one degree of freedom
    assert "interval at 95%" in shown
    assert all(line.count("[") == line.count("]") for line in shown.splitlines())


def test_a_table_says_how_much_of_it_goes_which_way() -> None:
    assert table_words(table()) == "2 clusters: 1 local (prompts of up to 10,000 tokens), 1 remote"
    regimes = RegimeModel(
        scaler=table().scaler,
        clusters=KMEANS,
        prefill_backlog_tokens=(100.0, 1000.0),
        decode_requests=(),
        actions=(("local", "local", "remote"), ("local", "remote", "remote")),
    )
    told = "2 clusters in 3 load regimes: 3 local (prompts of up to 16,384 tokens), 3 remote"
    assert table_words(regimes) == told


def test_a_policy_by_price_is_no_table() -> None:
    assert table_words(model_of(JointPolicy(baseline=AlwaysLocal()), fleet_costs("h100-llama8b"))) is None


def test_the_rule_to_beat_is_told_in_tokens_and_per_cent() -> None:
    rule = DynamoRule(eff_isl_threshold=8192, eff_isl_ratio_threshold=1.0)
    told = TunedRule(rule=rule, score=score(0.5)).words
    assert told == "isl_bounding, local below 8,192 uncached tokens and 100% of the prompt"
