"""What a soak sends."""

from collections import Counter

import msgspec
import pytest

from loadtest.plane.proxies import API_KEY, MODEL
from loadtest.plane.traffic import FAULTS, LEAVES_WITHIN_S, PROMPTS, WEIGHTS, WHOLE, Kind, Request, Traffic
from loadtest.worker.faults import FaultKind

DRAWN = 4000


@pytest.fixture(scope="module")
def drawn() -> list[Request]:
    traffic = Traffic(seed=1)
    return [traffic.draw() for _ in range(DRAWN)]


def test_the_same_seed_sends_the_same(drawn: list[Request]) -> None:
    again, other = Traffic(seed=1), Traffic(seed=2)
    assert [again.draw() for _ in range(50)] == drawn[:50]
    assert [other.draw() for _ in range(50)] != drawn[:50]


def test_every_kind_comes_about_as_often_as_it_weighs(drawn: list[Request]) -> None:
    counts = Counter(one.kind for one in drawn)
    assert counts.keys() == WEIGHTS.keys()
    for kind, weight in WEIGHTS.items():
        share = weight / sum(WEIGHTS.values())
        assert counts[kind] / DRAWN == pytest.approx(share, abs=0.02)


def test_only_those_that_are_cancelled_leave(drawn: list[Request]) -> None:
    for one in drawn:
        assert (one.leaves_s is not None) is (one.kind is Kind.CANCELLED)
        assert one.leaves_s is None or 0.0 <= one.leaves_s <= LEAVES_WITHIN_S


def test_what_is_wrong_with_a_request_is_what_its_kind_says(drawn: list[Request]) -> None:
    for one in drawn:
        assert (one.key == API_KEY) is (one.kind is not Kind.WRONG_KEY)
        assert (one.target == "/v1/chat/completions") is (one.kind is not Kind.UNKNOWN_ROUTE)
        if one.kind is Kind.BAD_JSON:
            with pytest.raises(msgspec.DecodeError):
                msgspec.json.decode(one.body)
        else:
            assert (msgspec.json.decode(one.body)["model"] == MODEL) is (one.kind is not Kind.UNKNOWN_MODEL)


def test_prompts_are_few_and_long_where_they_go_remote(drawn: list[Request]) -> None:
    bodies = {one.kind: msgspec.json.decode(one.body) for one in drawn if one.kind in WHOLE}
    assert {kind: body["stream"] for kind, body in bodies.items()} == {
        Kind.PLAIN: False,
        Kind.STREAM: True,
        Kind.REMOTE: False,
        Kind.REMOTE_STREAM: True,
    }
    lengths = {kind: len(body["messages"][0]["content"]) for kind, body in bodies.items()}
    assert max(lengths[Kind.PLAIN], lengths[Kind.STREAM]) < 16
    assert min(lengths[Kind.REMOTE], lengths[Kind.REMOTE_STREAM]) > 400
    assert len({one.body for one in drawn if one.kind is Kind.PLAIN}) <= PROMPTS


def test_every_fault_of_a_worker_is_among_them_but_the_one_that_only_drips() -> None:
    assert {fault.kind for fault in FAULTS} == set(FaultKind) - {FaultKind.DRIP}
