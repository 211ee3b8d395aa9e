"""From a request's text to the estimate of its answer: what travels, and when it counts."""

import math
from dataclasses import replace

import pytest

from gateway.core.calibration import Calibration
from gateway.core.features import estimate
from gateway.core.output_length.carried import PromptReader, predicted_tokens
from gateway.core.output_length.facts import PromptFacts
from gateway.core.output_length.features import FEATURES, extract
from gateway.core.output_length.predictor import OutputLengthModel
from gateway.core.policy import Policy
from gateway.core.types import Endpoint, OutputFeatures
from tests.core.factories import facts, routed, router, worker
from tests.core.output_length.predictor_factories import model

PREDICTOR = replace(model(), version="v1")
PROMPT = PromptFacts(text="explain this", prompt_tokens=10.0, model="m")
MEAN = Calibration().osl_tokens("m")


def features(predictor: OutputLengthModel = PREDICTOR, prompt: PromptFacts = PROMPT) -> OutputFeatures:
    return PromptReader(model=predictor, bytes_per_token=lambda _: 4.0).features(prompt)


def test_missing_features_are_none_and_the_others_are_what_the_model_is_taught_with() -> None:
    values = features().values
    for value, taught in zip(values, extract(PROMPT, PREDICTOR.spec), strict=True):
        assert math.isnan(taught) if value is None else value == taught
    assert None in values


def test_a_score_that_no_32_bits_hold_is_as_if_it_were_missing() -> None:
    extreme = replace(PREDICTOR.spec.unknown, log_tokens=1e300)
    predictor = replace(PREDICTOR, spec=replace(PREDICTOR.spec, models={"m": extreme}))
    assert features(predictor).values[FEATURES.index("model_log_tokens")] is None


def test_what_travelled_is_predicted_as_what_did_not() -> None:
    direct = PREDICTOR.predict(extract(PROMPT, PREDICTOR.spec)).expected_tokens
    assert predicted_tokens(PREDICTOR, features(), None) == direct


@pytest.mark.parametrize(
    ("predictor", "carried"),
    [
        (None, features()),
        (PREDICTOR, None),
        (replace(PREDICTOR, version="v2"), features()),
        (PREDICTOR, OutputFeatures(predictor="v1", values=(1.0,))),
    ],
)
def test_without_a_model_or_its_own_features_the_mean_stands(
    predictor: OutputLengthModel | None, carried: OutputFeatures | None
) -> None:
    made = estimate(facts(output_features=carried), Calibration(), predictor)
    assert (made.osl_tokens, made.osl_predicted) == (MEAN, False)


@pytest.mark.parametrize("tokens", [None, 100])
def test_a_prediction_takes_the_place_of_the_mean_for_text_and_token_ids(tokens: int | None) -> None:
    made = estimate(facts(tokens=tokens, output_features=features()), Calibration(), PREDICTOR)
    assert made.osl_predicted
    assert made.osl_tokens == pytest.approx(100.0)


def test_a_prediction_never_exceeds_the_requests_own_limit() -> None:
    made = estimate(facts(output_features=features(), max_output_tokens=7), Calibration(), PREDICTOR)
    assert (made.osl_tokens, made.osl_predicted) == (7.0, True)


def test_what_makes_no_tokens_has_no_length() -> None:
    made = estimate(facts(output_features=features(), endpoint=Endpoint.EMBEDDINGS), Calibration(), PREDICTOR)
    assert (made.osl_tokens, made.osl_predicted) == (0.0, False)


def test_a_decision_holds_the_prediction_and_says_so_until_the_policy_has_none() -> None:
    core = router(worker("d0"), policy=Policy(output_length=PREDICTOR))
    asked = facts(output_features=features())
    decision = routed(core.submit(asked, 0.0))
    assert decision.osl_predicted
    assert decision.features.osl_tokens == pytest.approx(100.0)
    core.adopt(Policy(output_length=replace(PREDICTOR, version="v2")))
    for policy in (core.policy, Policy()):
        core.adopt(policy)
        decision = routed(core.submit(asked, 0.0))
        assert (decision.features.osl_tokens, decision.osl_predicted) == (MEAN, False)
