import pytest

from loadtest.traces.mixing import mixed
from loadtest.traces.retime import start_rate_rps
from loadtest.traces.sessions import Session, Turn
from loadtest.traces.types import TraceRequest
from loadtest.traces.workload import Workload


def requests(*times_s: float, session: str | None = None) -> Workload:
    return Workload(
        requests=tuple(
            TraceRequest(
                index=n, arrival_s=at_s, input_tokens=900, output_tokens=1, hash_ids=(0, n + 1), session=session
            )
            for n, at_s in enumerate(times_s)
        )
    )


def sessions(*starts_s: float) -> Workload:
    agent = Session(id="inner", start_s=0.0, turns=(Turn(input_tokens=1, output_tokens=1, hash_ids=(7,)),))
    turn = Turn(input_tokens=1, output_tokens=1, hash_ids=(0, 3), agents=(agent,))
    return Workload(sessions=tuple(Session(id=f"s{n}", start_s=at_s, turns=(turn,)) for n, at_s in enumerate(starts_s)))


def test_parts_are_merged_in_order_of_time_and_keep_their_names() -> None:
    found = mixed({"a": requests(1, 4, session="x"), "b": requests(2, 3)})
    assert [(one.index, one.arrival_s, one.session) for one in found.requests] == [
        (0, 1, "a/x"), (1, 2, None), (2, 3, None), (3, 4, "a/x")
    ]  # fmt: skip


def test_parts_share_no_blocks_but_each_goes_on_sharing_its_own() -> None:
    found = mixed({"a": requests(1, 2), "b": requests(3, 4), "c": sessions(5, 6)})
    a, b = found.requests[:2], found.requests[2:]
    assert a[0].hash_ids[0] == a[1].hash_ids[0] != b[0].hash_ids[0] == b[1].hash_ids[0]
    (turn,) = found.sessions[0].turns
    inner = turn.agents[0].turns[0].hash_ids
    used = [{block for one in part for block in one.hash_ids} for part in (a, b)]
    assert len(used[0] | used[1] | {*turn.hash_ids, *inner}) == 3 + 3 + 3
    assert found.sessions[0].id == "c/s0"
    assert turn.agents[0].id == "c/s0/1"


def test_requests_of_sub_agents_stay_with_their_conversation() -> None:
    found = mixed({"a": Workload(requests=tuple(sessions(1).flattened())), "b": sessions(2)})
    of_a = [one for one in found.requests if one.conversation == "a/s0"]
    assert [(one.session, one.root) for one in of_a] == [("a/s0", None), ("a/inner", "a/s0")]


def test_no_two_sub_agents_of_a_session_have_one_name() -> None:
    turn = sessions(1).sessions[0].turns[0]
    found = mixed({"a": Workload(sessions=(Session(id="s", start_s=1.0, turns=(turn, turn)),)), "b": requests(1)})
    names = [agent.id for one in found.sessions[0].turns for agent in one.agents]
    assert names == ["a/s/1", "a/s/2"]


def test_shares_are_of_the_first_arrivals() -> None:
    parts = {"a": requests(*range(1, 101)), "b": sessions(*range(2, 42, 2))}
    found = mixed(parts, shares={"a": 3, "b": 1}, rate_rps=8.0)
    assert start_rate_rps(Workload(requests=found.requests)) == pytest.approx(6.0)
    assert start_rate_rps(Workload(sessions=found.sessions)) == pytest.approx(2.0)


def test_a_rate_alone_keeps_the_proportions() -> None:
    found = mixed({"a": requests(*range(1, 11)), "b": sessions(2, 4)}, rate_rps=3.0)
    assert start_rate_rps(Workload(requests=found.requests)) == pytest.approx(2.0)
    assert start_rate_rps(Workload(sessions=found.sessions)) == pytest.approx(1.0)
