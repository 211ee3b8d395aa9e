"""The log of loads, written and read without a server."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.events import WorkerLoad
from gateway.core.types import WorkerId
from gateway.fleet.shared.loads_log import CHANGES, WHOLE, HeardLoads, written
from tests.fleet.shared.redis_lab import A, B

ODD = WorkerId("a worker = with + spaces")
NUMBERS = st.tuples(*[st.integers(0, 3)] * 5)
TEXTS = st.lists(
    st.tuples(
        st.sampled_from([CHANGES, WHOLE]),
        st.sampled_from(["us", "r1", "r2"]),
        st.dictionaries(st.sampled_from([A, B, ODD]), NUMBERS, max_size=3),
    ),
    max_size=12,
)


def test_a_text_is_a_name_and_a_line_for_each_load() -> None:
    assert written(CHANGES, "r1", [WorkerLoad(A, 1, 2, 3, 4, 5)]) == "+r1\n1 2 3 4 5 decode-a\n"
    assert written(WHOLE, "r1", []) == "=r1\n"


def test_sums_are_of_all_others_and_told_once() -> None:
    heard = HeardLoads("us")
    heard.read(written(WHOLE, "r1", [WorkerLoad(A, 1, 10)]) + written(WHOLE, "us", [WorkerLoad(A, 9)]))
    heard.read(written(CHANGES, "r2", [WorkerLoad(A, 2, 5), WorkerLoad(ODD, 1)]))
    assert sorted(heard.changed()) == [WorkerLoad(ODD, 1), WorkerLoad(A, 3, 15)]
    assert heard.changed() == []
    heard.read(written(CHANGES, "r1", [WorkerLoad(A)]))
    assert heard.changed() == [WorkerLoad(A, 2, 5)]


def test_one_that_is_gone_has_nothing() -> None:
    heard = HeardLoads("us")
    heard.read(written(CHANGES, "r1", [WorkerLoad(A, 1), WorkerLoad(B, 2)]))
    heard.read(written(CHANGES, "r2", [WorkerLoad(B, 3)]))
    heard.changed()
    heard.read(written(WHOLE, "r1", []))
    assert sorted(heard.changed()) == [WorkerLoad(A), WorkerLoad(B, 3)]


def test_what_was_forgotten_is_not_told_of() -> None:
    heard = HeardLoads("us")
    heard.read(written(CHANGES, "r1", [WorkerLoad(A, 1)]))
    heard.begin()
    heard.read(written(WHOLE, "r2", [WorkerLoad(B, 1)]))
    assert heard.changed() == [WorkerLoad(B, 1)]


@pytest.mark.parametrize("text", ["+r1\n1 2 3\n", "+r1\n1 2 3 4 x decode-a\n", "+r1\n1 2 3 4 decode-a\n"])
def test_what_is_no_load_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"unpack|int|argument"):
        HeardLoads("us").read(text)


@given(TEXTS, st.integers(0, 12), st.data())
def test_any_course_is_the_sum_of_the_last_words_and_may_be_read_twice(
    texts: list[tuple[str, str, dict[WorkerId, tuple[int, ...]]]], joined: int, data: st.DataObject
) -> None:
    """Also by one that joins later: what each has last told as a whole, and then the log from before that on."""
    last: dict[str, dict[WorkerId, tuple[int, ...]]] = {}
    wholes: dict[str, str] = {}
    log = []
    for at, (kind, replica, loads) in enumerate(texts):
        if at == joined:
            wholes = {name: written(WHOLE, name, _loads(own)) for name, own in last.items()}
        if kind == WHOLE:
            last[replica] = {}
        last.setdefault(replica, {}).update(loads)
        log.append(written(kind, replica, _loads(loads)))
    sums: dict[WorkerId, list[int]] = {}
    for replica, own in last.items():
        for worker_id, numbers in own.items():
            if replica != "us":
                sums[worker_id] = [
                    one + other for one, other in zip(sums.get(worker_id, [0] * 5), numbers, strict=True)
                ]
    expected = {worker_id: tuple(numbers) for worker_id, numbers in sums.items() if any(numbers)}
    early = HeardLoads("us")
    early.read("".join(log))
    late = HeardLoads("us")
    for text in wholes.values():
        late.read(text)
    late.read("".join(log[data.draw(st.integers(0, min(joined, len(log)))) if wholes else 0 :]))
    for heard in (early, late):
        assert {load.worker_id: tuple(load[1:]) for load in heard.changed() if any(load[1:])} == expected


def _loads(by_worker: dict[WorkerId, tuple[int, ...]]) -> list[WorkerLoad]:
    return [WorkerLoad(worker_id, *numbers) for worker_id, numbers in by_worker.items()]
