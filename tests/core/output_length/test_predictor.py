import math

import numpy as np
import pytest

from gateway.core.output_length.facts import PromptFacts
from gateway.core.output_length.features import FEATURES, extract, tenant_hash
from gateway.core.output_length.predictor import LengthClass, predicted_or_mean
from gateway.core.output_length.terms import LAYOUT, MAX_SCORE, term_buckets
from gateway.core.output_length.text import read_text
from tests.core.output_length.predictor_factories import BUCKETS, model, spec, text_score

FACTS = PromptFacts(text="explain this", prompt_tokens=10.0, model="m")


def named(facts: PromptFacts, **learned: object) -> dict[str, float]:
    return dict(zip(FEATURES, extract(facts, spec(**learned)), strict=True))  # type: ignore[arg-type]


def test_what_is_not_known_is_missing_and_not_zero() -> None:
    found = named(FACTS)
    for name in ("text_score", "tenant_score", "last_log_output", "log_added_tokens", "after_tool"):
        assert math.isnan(found[name])
    assert found["previous_outputs"] == 0.0


def test_earlier_answers_are_summed_up() -> None:
    facts = PromptFacts(
        text="go on", prompt_tokens=50.0, model="m", previous_outputs=(9, 99), previous_prompt_tokens=20.0,
        after_tool=True,
    )  # fmt: skip
    found = named(facts)
    assert found["previous_outputs"] == 2.0
    assert found["last_log_output"] == pytest.approx(math.log(100.0))
    assert found["mean_log_output"] == pytest.approx(math.log(1000.0) / 2)
    assert found["log_added_tokens"] == pytest.approx(math.log(31.0))
    assert found["after_tool"] == 1.0


def test_a_model_that_was_not_learned_from_has_the_pooled_level() -> None:
    stranger = PromptFacts(text="hi", prompt_tokens=1.0, model="other")
    assert named(stranger)["model_log_tokens"] == pytest.approx(math.log(300.0))


def test_a_tenant_is_known_by_its_hash() -> None:
    facts = PromptFacts(text="hi", prompt_tokens=1.0, model="m", tenant="acme")
    assert named(facts, tenants={tenant_hash("acme"): 0.5})["tenant_score"] == 0.5
    assert math.isnan(named(facts)["tenant_score"])


def test_features_are_rounded_to_32_bits() -> None:
    found = named(PromptFacts(text="", prompt_tokens=0.1, model="m"))
    assert found["prompt_token_len"] == float(np.float32(0.1)) != 0.1


def test_terms_are_distinct_and_inside_the_table() -> None:
    buckets = term_buckets(read_text("to be or not to be"), BUCKETS).tolist()
    assert buckets == sorted(set(buckets))
    assert all(0 <= bucket < BUCKETS for bucket in buckets)
    assert not term_buckets(read_text("?!"), BUCKETS).size


def test_a_score_is_the_same_in_every_process() -> None:
    for text in ("explain this", "Explain THIS!"):
        assert term_buckets(read_text(text), 1 << 15).tolist() == [18694, 23046, 30938]


def test_a_score_cannot_run_away() -> None:
    read = read_text("one two three")
    score = text_score(weight=100.0).of(term_buckets(read, BUCKETS), (0.0,) * len(LAYOUT))
    assert score == MAX_SCORE
    assert text_score(trust=0.0, weight=9.0).of(term_buckets(read, BUCKETS), (1.0,) * len(LAYOUT)) == 0.25


def test_classes_are_in_order_even_where_the_questions_disagree() -> None:
    answer = model(medium=-1.0, longer=2.0).predict(extract(FACTS, spec()))
    assert answer.probabilities is not None
    short, medium, longer = answer.probabilities
    assert medium == 0.0
    assert short + longer == pytest.approx(1.0)
    assert answer.length_class is LengthClass.SHORT


def test_the_expected_length_starts_from_the_models_level_and_the_texts_score() -> None:
    assert model().predict(extract(FACTS, spec())).expected_tokens == pytest.approx(100.0, rel=1e-5)
    scored = model().predict(extract(FACTS, spec(text=text_score(weight=0.0)))).expected_tokens
    assert scored == pytest.approx(100.0 * math.exp(0.5 * 0.25), rel=1e-5)


@pytest.mark.parametrize(("limit", "impossible"), [(100, (1, 2)), (200, (2,)), (799, (2,)), (800, ())])
def test_a_request_s_own_limit_caps_the_length_and_rules_out_classes(limit: int, impossible: tuple[int, ...]) -> None:
    answer = model(medium=1.0, longer=0.5).predict(extract(FACTS, spec()), limit)
    assert answer.probabilities is not None
    assert answer.expected_tokens <= limit
    assert sum(answer.probabilities) == pytest.approx(1.0)
    assert all(answer.probabilities[at] == 0.0 for at in impossible)


def test_without_a_model_the_rolling_mean_stands_and_the_class_is_medium() -> None:
    answer = predicted_or_mean(None, None, 256.0, 100)
    assert (answer.expected_tokens, answer.probabilities, answer.length_class) == (100.0, None, LengthClass.MEDIUM)
    assert answer.order_key == 0.5
    assert predicted_or_mean(model(), extract(FACTS, spec()), 256.0, None).probabilities is not None


def test_a_vector_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="features instead of"):
        model().predict((1.0, 2.0))
