from dataclasses import fields, is_dataclass, replace
from enum import Enum
from types import NoneType, UnionType
from typing import Any, NewType, Union, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.events import FirstToken, WorkerSampled
from gateway.core.types import (
    Decision,
    DecisionId,
    Refusal,
    RefusalKind,
    RequestId,
    WorkerId,
    WorkerSample,
)
from gateway.wire.journal import PAYLOAD_TYPES, JournalCall, JournalError, canonical, decode_call, encode_call

SCALARS: dict[Any, st.SearchStrategy[Any]] = {
    int: st.integers(-(2**63), 2**64 - 1),
    float: st.floats(allow_nan=False, allow_infinity=False),
    str: st.text(max_size=20),
    bool: st.booleans(),
    NoneType: st.none(),
}


def anything(hint: Any) -> st.SearchStrategy[Any]:
    """Values of a core type, with floats and integers of every size."""
    if isinstance(hint, NewType):
        return anything(hint.__supertype__)
    if get_origin(hint) in (Union, UnionType):
        return st.one_of(*map(anything, get_args(hint)))
    if get_origin(hint) is tuple:
        return tuples(*get_args(hint))
    return SCALARS[hint] if hint in SCALARS else members(hint)


def tuples(*items: Any) -> st.SearchStrategy[tuple[Any, ...]]:
    if items[-1] is Ellipsis:
        return st.lists(anything(items[0]), max_size=3).map(tuple)
    return st.tuples(*map(anything, items))


def members(cls: type) -> st.SearchStrategy[Any]:
    if issubclass(cls, Enum):
        return st.sampled_from(cls)
    hints = get_type_hints(cls)
    if issubclass(cls, tuple):  # a named one
        return st.builds(cls, **{name: anything(hint) for name, hint in hints.items()})
    assert is_dataclass(cls)
    return st.builds(cls, **{item.name: anything(hints[item.name]) for item in fields(cls)})


payloads = st.one_of(*map(anything, PAYLOAD_TYPES.values()))
details = st.dictionaries(
    st.text(max_size=5), st.none() | SCALARS[int] | SCALARS[float] | SCALARS[str] | st.lists(SCALARS[str], max_size=2)
)


@given(st.text(max_size=9), SCALARS[float], st.none() | payloads, details)
def test_a_call_comes_back_exactly(name: str, now_s: float, payload: Any, extra: dict[str, Any]) -> None:
    line = encode_call(name, now_s, payload, details=extra)
    call = decode_call(line)
    assert call == JournalCall(name=name, now_s=now_s, payload=payload, details=extra)
    assert type(call.payload) is type(payload)
    assert encode_call(call.name, call.now_s, call.payload, details=call.details) == line


@given(payloads)
def test_a_call_is_one_line(payload: Any) -> None:
    line = encode_call("observe", 1.0, payload)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1


def test_every_event_can_be_written_down() -> None:
    assert {"WorkerUp", "WorkerSampled", "Dispatched", "Finished", "RequestFacts"} <= set(PAYLOAD_TYPES)


def test_a_call_without_a_payload() -> None:
    assert decode_call(encode_call("tick", 2.5)) == JournalCall(name="tick", now_s=2.5)


def test_the_details_of_a_call_do_not_depend_on_their_order() -> None:
    one = encode_call("submit", 1.0, details={"attempt": 2, "excluded": ["w1", "w2"]})
    two = encode_call("submit", 1.0, details={"excluded": ["w1", "w2"], "attempt": 2})
    assert one == two


def test_an_integer_time_is_written_as_the_float_it_means() -> None:
    assert encode_call("tick", 2) == encode_call("tick", 2.0)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_number_that_json_cannot_carry_is_refused(value: float) -> None:
    sample = WorkerSample(at_s=1.0, kv_used_ratio=value)
    with pytest.raises(JournalError):
        encode_call("observe", 1.0, WorkerSampled(at_s=1.0, worker_id=WorkerId("w"), sample=sample))
    with pytest.raises(JournalError):
        encode_call("tick", value)


def test_only_listed_types_are_payloads() -> None:
    stranger: Any = WorkerSample(at_s=1.0)
    with pytest.raises(JournalError):
        encode_call("observe", 1.0, stranger)


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{}",
        b"[]\n",
        b'{"call":"observe","now_s":1.0,"type":"Nobody","payload":{}}',
        b'{"call":"observe","now_s":1.0,"type":"FirstToken"}',
        b'{"call":"observe","now_s":1.0,"type":"FirstToken","payload":{"at_s":"x","decision_id":"d"}}',
        b'{"call":"tick","now_s":"soon"}',
    ],
)
def test_what_is_no_journal_line_is_an_error(line: bytes) -> None:
    with pytest.raises(JournalError):
        decode_call(line)


@given(anything(Decision) | anything(Refusal))
def test_equal_results_have_equal_bytes(result: Any) -> None:
    assert canonical(result) == canonical(replace(result))


@given(anything(Decision), st.text(min_size=1))
def test_other_results_have_other_bytes(decision: Decision, more: str) -> None:
    assert canonical(replace(decision, words=decision.words + more)) != canonical(decision)


def test_a_refusal_is_readable() -> None:
    refusal = Refusal(request_id=RequestId("r"), kind=RefusalKind.MODEL_NOT_FOUND, words="no m")
    assert canonical(refusal) == b'{"request_id":"r","kind":"model_not_found","words":"no m"}'


def test_an_event_is_readable() -> None:
    line = encode_call("observe", 0.5, FirstToken(at_s=0.25, decision_id=DecisionId("d")))
    assert line == (b'{"call":"observe","now_s":0.5,"type":"FirstToken","payload":{"at_s":0.25,"decision_id":"d"}}\n')
