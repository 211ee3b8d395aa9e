import heapq
from dataclasses import replace
from itertools import islice

import pytest

from loadtest.traces.sessions import Service, Session, Turn
from loadtest.traces.synthetic import uniform_mix
from loadtest.traces.synthetic_sessions import CLAUDE_CODE, session_trace
from loadtest.traces.types import TraceRequest
from loadtest.traces.workload import Driver, Workload

SERVICE = Service(ttft_s=1.0, tpot_s=0.0)


def turn(think_s: float = 0.0, agents: tuple[Session, ...] = ()) -> Turn:
    return Turn(input_tokens=100, output_tokens=10, hash_ids=(1, 2), think_s=think_s, agents=agents)


def run(driver: Driver, service_s: float) -> dict[int, float]:
    """When each request arrived, by index, on a server that answers everything after so long."""
    arrived: dict[int, float] = {}
    due = [(at_s, request.index, request) for at_s, request in driver.first_arrivals()]
    while due:
        at_s, index, request = heapq.heappop(due)
        assert index not in arrived
        arrived[index] = at_s
        for next_s, following in driver.answered(request, at_s + service_s):
            heapq.heappush(due, (next_s, following.index, following))
    return arrived


def test_open_loop_requests_arrive_whatever_becomes_of_them() -> None:
    requests = uniform_mix(20, isl_tokens=100, osl_tokens=5, rate_rps=2.0, seed=1)
    driver = Workload(requests=tuple(requests)).driver()
    assert list(driver.first_arrivals()) == [(request.arrival_s, request) for request in requests]
    assert driver.answered(requests[3], 99.0) == ()


def test_the_next_turn_waits_for_the_answer_however_long_it_takes() -> None:
    session = Session(id="s", start_s=2.0, turns=(turn(3.0), turn(4.0), turn()), block_tokens=64)
    driver = Workload(sessions=(session,)).driver(SERVICE)
    ((at_s, first),) = driver.first_arrivals()
    assert (at_s, first.session, first.block_tokens, first.hash_ids) == (2.0, "s", 64, (1, 2))
    ((at_s, second),) = driver.answered(first, 50.0)
    assert (at_s, second.index, second.arrival_s) == (53.0, 1, 6.0)  # the nominal time is what it was
    ((at_s, third),) = driver.answered(second, 60.0)
    assert at_s == 64.0
    assert driver.answered(third, 70.0) == ()


def test_agents_start_together_and_are_waited_for() -> None:
    agents = tuple(Session(id=f"s/{n}", start_s=float(n), turns=(turn(0.5),)) for n in (1, 2))
    session = Session(id="s", start_s=0.0, turns=(turn(10.0, agents), turn()))
    driver = Workload(sessions=(session,)).driver(SERVICE)
    ((_, first),) = driver.first_arrivals()
    (one_s, one), (two_s, two) = driver.answered(first, 5.0)
    assert (one_s, one.session, two_s, two.session) == (6.0, "s/1", 7.0, "s/2")
    assert driver.answered(two, 40.0) == ()
    ((at_s, last),) = driver.answered(one, 20.0)
    assert (at_s, last.session) == (50.5, "s")  # the later of the two decides, though it reported first


def test_requests_say_which_turn_they_are_and_whom_they_show_text() -> None:
    agent = Session(id="s/1", start_s=0.0, turns=(turn(), turn()))
    turns = (replace(turn(1.0, (agent,)), is_visible=False), turn(), replace(turn(), is_visible=False))
    found = Workload(sessions=(Session(id="s", start_s=0.0, turns=turns),)).flattened(SERVICE)
    assert [(one.session, one.root, one.turn, one.is_visible, one.is_last) for one in found] == [
        ("s", None, 0, False, False),
        ("s/1", "s", 0, False, False),
        ("s/1", "s", 1, False, True),
        ("s", None, 1, True, False),
        ("s", None, 2, True, True),
    ]
    assert {one.conversation for one in found} == {"s"}


def test_a_request_without_a_session_is_no_conversation() -> None:
    alone = TraceRequest(index=0, arrival_s=0.0, input_tokens=1, output_tokens=1)
    assert (alone.conversation, alone.turn, alone.is_visible, alone.is_last) == (None, 0, True, False)


def test_every_run_begins_anew() -> None:
    agents = tuple(Session(id=f"s/{n}", start_s=0.0, turns=(turn(),)) for n in (1, 2))
    workload = Workload(sessions=(Session(id="s", start_s=0.0, turns=(turn(1.0, agents), turn())),))
    assert run(workload.driver(), 3.0) == run(workload.driver(), 3.0)


def test_everything_is_served_once_and_in_nominal_order_of_indices() -> None:
    sessions = tuple(islice(session_trace(CLAUDE_CODE, seed=3), 8))
    requests = tuple(uniform_mix(50, isl_tokens=100, osl_tokens=5, rate_rps=1.0, seed=1))
    driver = Workload(requests=requests, sessions=sessions).driver()
    arrived = run(driver, 2.0)
    assert sorted(arrived) == list(range(len(driver.requests)))
    assert [request.index for request in driver.requests] == list(range(len(driver.requests)))
    nominal_s = [request.arrival_s for request in driver.requests]
    assert nominal_s == sorted(nominal_s)


def test_on_a_server_as_assumed_turns_come_at_their_nominal_times() -> None:
    agents = tuple(Session(id=f"s/{n}", start_s=float(n), turns=(turn(0.5), turn(n))) for n in (1, 2))
    session = Session(id="s", start_s=1.5, turns=(turn(2.0), turn(10.0, agents), turn()))
    workload = Workload(sessions=(session,))
    arrived = run(workload.driver(SERVICE), 1.0)
    flat = workload.flattened(SERVICE)
    assert [arrived[request.index] for request in flat] == pytest.approx([request.arrival_s for request in flat])


def test_a_flattened_open_workload_is_its_requests() -> None:
    requests = uniform_mix(5, isl_tokens=100, osl_tokens=5, rate_rps=2.0, seed=1)
    assert Workload(requests=tuple(requests)).flattened() == requests


def test_a_request_that_the_run_does_not_know_is_followed_by_nothing() -> None:
    warm_up = TraceRequest(index=-1, arrival_s=0.0, input_tokens=1, output_tokens=1)
    assert Workload().driver().answered(warm_up, 1.0) == ()
