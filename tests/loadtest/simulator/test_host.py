import pytest

from loadtest.simulator.flight import Flight
from loadtest.simulator.host import ScrapePlan, Simulation
from tests.loadtest.simulator.simulator_lab import ListLoad, RouteByIndex, lab_engines, request, run_routes


def times(flight: Flight) -> tuple[float | None, float | None, float | None]:
    return flight.prefilled_s, flight.first_token_s, flight.ended_s


def test_a_local_request_is_one_leg() -> None:
    run, told = run_routes([request(0, at_s=2.0, output=3)], {0: (None, 1)})
    (flight,) = run.flights
    assert times(flight) == (None, 3.0, 5.0)
    assert (flight.ttft_s, flight.tpot_s) == (1.0, 1.0)
    assert told.told == [(2.0, "arrived", 0), (3.0, "first token", 0), (5.0, "ended", 0)]


def test_a_remote_request_is_prefilled_transferred_and_decoded() -> None:
    engines = lab_engines(2)
    run, told = run_routes([request(0, output=3)], {0: (0, 1)}, engines=engines)
    # One step of prefill; eight tokens take 2.5 s to transfer; each token of the answer is a step.
    assert times(run.flights[0]) == (1.0, 4.5, 6.5)
    assert [what for _, what, _ in told.told] == ["arrived", "prefilled", "first token", "ended"]
    assert [engine.snapshot().kv_used_ratio for engine in engines] == [0.0, 0.0]


def test_a_prefill_leg_holds_its_kv_until_the_transfer_is_over() -> None:
    engines = lab_engines(2)
    _, told = run_routes([request(0)], {0: (0, 1)}, engines=engines, scrape=ScrapePlan(interval_s=1.25))
    held = {at_s: sample.kv_used_ratio for at_s, engine, sample in told.samples if engine == 0}
    assert held[2.5] == pytest.approx(2 / 100)
    assert held[3.75] == 0.0


def test_transfers_out_of_one_engine_follow_one_another() -> None:
    requests = [request(0, prompt=8), request(1, prompt=8)]
    run, _ = run_routes(requests, {0: (0, 1), 1: (0, 2)}, engines=lab_engines(3))
    # Both are prefilled in one step and fetched by different engines: 2.5 s and then 2 s more on the source's link.
    assert [flight.prefilled_s for flight in run.flights] == [1.0, 1.0]
    assert [flight.first_token_s for flight in run.flights] == [4.5, 6.5]


def test_at_one_instant_arrivals_come_before_engines_and_scrapes_last() -> None:
    requests = [request(0, output=2), request(1, output=2), request(2, at_s=2.0)]
    routes = {0: (None, 1), 1: (None, 0), 2: (None, 0)}
    _, told = run_routes(requests, routes, scrape=ScrapePlan(interval_s=2.0))
    assert [(what, place) for at_s, what, place in told.told if at_s == 2.0] == [
        ("arrived", 2),
        ("ended", 1),
        ("ended", 0),
        ("sampled", 0),
        ("sampled", 1),
    ]


def test_arrivals_of_one_instant_share_a_step() -> None:
    run, _ = run_routes([request(0), request(1)], {0: (None, 0), 1: (None, 0)}, engines=lab_engines(1))
    assert [flight.ended_s for flight in run.flights] == [1.0, 1.0]


def test_the_next_turn_comes_after_the_answer_and_its_delay() -> None:
    turns = [request(0, at_s=1.0, output=2), request(1, at_s=99.0), request(2, at_s=99.0)]
    load = ListLoad(turns[:1], follows={0: (4.0, turns[1]), 1: (0.0, turns[2])})
    run = Simulation(lab_engines(1), RouteByIndex(dict.fromkeys(range(3), (None, 0))), load).run()
    assert [(flight.arrived_s, flight.ended_s) for flight in run.flights] == [(1.0, 3.0), (7.0, 8.0), (8.0, 9.0)]
    assert load.answers == [(0, 3.0), (1, 8.0), (2, 9.0)]


def test_a_session_goes_on_after_a_refusal() -> None:
    turns = [request(0), request(1)]
    load = ListLoad(turns[:1], follows={0: (2.0, turns[1])})
    run = Simulation(lab_engines(1), RouteByIndex({1: (None, 0)}, refused=[0]), load).run()
    refused, served = run.flights
    assert (refused.ended_s, refused.error) == (0.0, "refused: by the test")
    assert (served.arrived_s, served.ended_s, served.error) == (2.0, 3.0, None)


@pytest.mark.parametrize("route", [(None, 1), (0, 1)], ids=["local", "remote"])
def test_a_prompt_that_does_not_fit_is_rejected_at_once(route: tuple[int | None, int]) -> None:
    run, told = run_routes([request(0, prompt=401)], {0: route})
    (flight,) = run.flights
    assert flight.error == "http_400: the prompt does not fit the KV cache"
    assert (flight.first_token_s, flight.ended_s) == (None, 0.0)
    assert told.told[-1] == (0.0, "ended", 0)


def test_an_answer_that_does_not_fit_is_rejected_by_the_decode_engine() -> None:
    # The prefill leg makes one token, so only the decode engine sees that 400 tokens and an answer are too many.
    engines = lab_engines(2)
    run, _ = run_routes([request(0, prompt=400, output=2)], {0: (0, 1)}, engines=engines)
    (flight,) = run.flights
    assert flight.error == "http_400: the prompt does not fit the KV cache"
    assert (flight.prefilled_s, flight.ended_s) == (25.0, 25.0)
    assert engines[0].snapshot().kv_used_ratio == 0.0
    assert run.until_s == 25.0 + engines[0].spec.hold_lease_s


def test_cached_tokens_are_those_of_the_engine_that_prefills() -> None:
    requests = [request(0, hash_ids=(1, 2)), request(1, at_s=20.0, prompt=12, hash_ids=(1, 2, 3))]
    run, _ = run_routes(requests, {0: (0, 1), 1: (0, 1)})
    assert [flight.cached_tokens for flight in run.flights] == [0, 8]
    local, _ = run_routes(requests, {0: (None, 0), 1: (None, 0)})
    assert [flight.cached_tokens for flight in local.flights] == [0, 8]


@pytest.mark.parametrize("age_s", [0.0, 0.5, 3.0])
def test_a_scrape_is_heard_when_it_is_old_enough_and_tells_its_own_time(age_s: float) -> None:
    requests = [request(0, output=3), request(1, at_s=4.0, output=8)]
    scrape = ScrapePlan(interval_s=2.0, age_s=age_s)
    _, told = run_routes(requests, {0: (None, 0), 1: (None, 0)}, engines=lab_engines(1), scrape=scrape)
    running = {at_s: sample.running for at_s, _, sample in told.samples}
    assert running == dict.fromkeys((2.0, 4.0, 6.0, 8.0, 10.0), 1)
    order = [(at_s, what) for at_s, what, _ in told.told]
    # Samples tell when they were taken; when they were heard follows from what else was told before and after.
    heard = order.index((2.0, "sampled"))
    assert all(at_s <= 2.0 + age_s for at_s, what in order[:heard])
    assert all(at_s >= 2.0 + age_s for at_s, what in order[heard + 1 :] if what != "sampled")


def test_scrapes_end_with_the_work() -> None:
    run, told = run_routes([request(0, output=3)], {0: (None, 0)}, scrape=ScrapePlan(interval_s=2.0))
    assert [at_s for at_s, engine, _ in told.samples if engine == 0] == [2.0]
    assert run.until_s == 3.0


def test_until_leaves_requests_in_flight() -> None:
    requests = [request(0), request(1, at_s=1.0, output=9), request(2, at_s=50.0)]
    run, told = run_routes(requests, dict.fromkeys(range(3), (None, 0)), until_s=4.0)
    assert [(flight.request.index, flight.ended_s) for flight in run.flights] == [(0, 1.0), (1, None)]
    assert run.flights[1].first_token_s == 2.0
    assert max(at_s for at_s, _, _ in told.told) <= 4.0
    # Nothing happens at 4.0 itself: the second answer's tokens are not told one by one.
    assert run.until_s == 4.0


def test_what_is_due_at_until_happens() -> None:
    run, _ = run_routes([request(0)], {0: (None, 0)}, until_s=1.0)
    assert run.flights[0].ended_s == 1.0
    assert run.until_s == 1.0


def test_without_a_load_nothing_happens() -> None:
    run, told = run_routes([], {}, scrape=ScrapePlan())
    assert (run.flights, run.until_s, run.events, told.told) == ([], 0.0, 0, [])
