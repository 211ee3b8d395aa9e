"""From observations to the numbers of an engine.

The rule of this module: everything that an idle worker's times are made of is linear in the terms of the cost table, so
one non-negative fit of relative errors finds them together. What no probe can tell apart stays in one term: the step
overhead holds all that a step takes however little it computes, weights read from memory among it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from gateway.core.step_cost import AttentionTerms, StepWork
from loadtest.calibrate.limits import CalibrationError
from loadtest.calibrate.nnls import robust_non_negative
from loadtest.calibrate.observation import Observation
from loadtest.calibrate.plan import Kind
from loadtest.engine.fitting.regression import Array, rounded
from policy_store.costs.file import Knots

NEAREST_KNOTS = 1.1
"""Knots of the token curve differ by at least this factor."""
FASTEST_SHARE = 0.01
"""A transfer rate too high to be seen is written as one at which the longest transfer takes this share of its time."""
FIXED_TERMS = ("intake", "intake_token", "step")
LAST_TERMS = ("prefill_pair", "decode_sequence", "kv_token")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """An engine's prices, in seconds."""

    intake_s: float
    intake_token_s: float
    step_overhead_s: float
    dense: Knots
    """What tokens add to the step overhead."""
    attention: AttentionTerms


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedTransfer:
    """A link's prices, in seconds."""

    latency_s: float
    token_s: float


def fit(observations: Sequence[Observation]) -> Fitted:
    """The prices of prefill and decode observations.

    Raises:
        CalibrationError: one of the two kinds is missing.
    """
    used = [seen for seen in observations if seen.kind is not Kind.TRANSFER]
    if len({seen.kind for seen in used}) < 2:
        raise CalibrationError("too few probes succeeded: both prefills and decodes are needed")
    knots = _knots(used)
    features = np.array([_features(seen, knots) for seen in used])
    seconds = np.array([seen.seconds for seen in used])
    solution = robust_non_negative(features, seconds, scale=seconds)
    intake_s, intake_token_s, step_s, *ramps = solution[: -len(LAST_TERMS)].tolist()
    pair_s, sequence_s, kv_token_s = solution[-len(LAST_TERMS) :].tolist()
    heights = [0.0, *np.cumsum(ramps).tolist()]
    return Fitted(
        intake_s=rounded(intake_s),
        intake_token_s=rounded(intake_token_s),
        step_overhead_s=rounded(step_s),
        dense=Knots(at=knots, seconds=tuple(map(rounded, heights))),
        attention=AttentionTerms(
            launch_s=0.0,
            prefill_sequence_s=0.0,
            prefill_token_s=0.0,
            prefill_pair_s=rounded(pair_s),
            decode_sequence_s=rounded(sequence_s),
            kv_token_s=rounded(kv_token_s),
        ),
    )


def fit_transfer(observations: Sequence[Observation], known_s: Sequence[float]) -> FittedTransfer:
    """The link's prices, given what all but the transfer takes in each observation.

    Raises:
        CalibrationError: no transfer was observed.
    """
    if not observations:
        raise CalibrationError("no transfer succeeded")
    total_s = np.array([seen.seconds for seen in observations])
    tokens = np.array([float(seen.moved_tokens) for seen in observations])
    features = np.stack([np.ones_like(tokens), tokens], axis=1)
    latency_s, token_s = robust_non_negative(features, total_s - np.array(known_s), scale=total_s).tolist()
    longest = int(np.argmax(tokens))
    least_s = FASTEST_SHARE * float(total_s[longest] / tokens[longest])
    return FittedTransfer(
        latency_s=rounded(latency_s),
        token_s=rounded(token_s or least_s),
    )


def _knots(observations: Iterable[Observation]) -> tuple[int, ...]:
    """The token counts of the steps that were observed, but for those that are close to another."""
    counts = sorted({_tokens(work) for seen in observations for work in seen.steps} | {1})
    kept = [counts[0]]
    for count in counts[1:]:
        if count >= kept[-1] * NEAREST_KNOTS:
            kept.append(count)
    if len(kept) < 2:
        raise CalibrationError("all probes had steps of the same size")
    return tuple(kept)


def _tokens(work: StepWork) -> int:
    return work.decode_sequences + sum(new for new, _ in work.prefill)


def _features(seen: Observation, knots: tuple[int, ...]) -> Array:
    """What each term's coefficient is multiplied by, in the order of the terms."""
    row = np.zeros(len(FIXED_TERMS) + len(knots) - 1 + len(LAST_TERMS))
    row[0], row[1], row[2] = seen.intakes, seen.intake_tokens, len(seen.steps)
    last = len(row) - len(LAST_TERMS)
    for work in seen.steps:
        row[len(FIXED_TERMS) : last] += _ramps(_tokens(work), knots)
        for new, before in work.prefill:
            row[last] += new * (before + (new + 1) / 2)
            row[last + 2] += before
        row[last + 1] += work.decode_sequences
        row[last + 2] += work.decode_context_tokens
    return row


def _ramps(tokens: int, knots: tuple[int, ...]) -> list[float]:
    """How much of each stretch between two knots lies below `tokens`; the last one goes on for ever."""
    parts = [max(0.0, min(1.0, (tokens - low) / (high - low))) for low, high in pairwise(knots)]
    if tokens > knots[-1]:
        parts[-1] = (tokens - knots[-2]) / (knots[-1] - knots[-2])
    return parts
