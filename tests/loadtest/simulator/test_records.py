from gateway.core.path.rules import AlwaysRemote
from loadtest.client.records import CANCELLED
from loadtest.simulator.host import Run
from loadtest.simulator.records import to_records
from tests.loadtest.simulator.simulator_lab import request, run_routes
from tests.loadtest.simulator.test_dispatch import PAIR, REMOTE, Fleet


def test_a_record_is_what_a_client_would_have_measured() -> None:
    assert isinstance(REMOTE.path, AlwaysRemote)
    (record,) = to_records(Fleet(REMOTE, PAIR).run(request(7, at_s=1.0, output=3)))
    assert (record.request_id, record.index) == ("7", 7)
    assert (record.scheduled_s, record.sent_s, record.lag_s) == (1.0, 1.0, 0.0)
    assert (record.status, record.ok, record.error) == (200, True, None)
    assert (record.input_tokens, record.output_tokens, record.cached_tokens) == (8, 3, 0)
    assert (record.ttft_s, record.tpot_s, record.e2e_s) == (4.5, 1.0, 6.5)
    assert (record.path, record.worker, record.policy) == ("remote", "decode-0", "remote")
    assert record.decision_id == "sim-1"


def test_a_failure_has_no_counts() -> None:
    (record,) = to_records(Fleet(REMOTE, PAIR).run(request(0, prompt=401)))
    assert (record.ok, record.status, record.error_kind) == (False, None, "http_400")
    assert (record.input_tokens, record.output_tokens, record.cached_tokens, record.ttft_s) == (None,) * 4
    assert record.path == "remote"


def test_what_is_under_way_at_the_end_is_cancelled() -> None:
    run, _ = run_routes([request(0, at_s=1.0, output=9)], {0: (None, 0)}, until_s=4.0)
    (record,) = to_records(run)
    assert (record.ok, record.error, record.cancelled) == (False, CANCELLED, True)
    assert (record.ttft_s, record.tpot_s) == (1.0, None)
    assert record.e2e_s == run.until_s - 1.0


def test_without_a_core_there_is_no_path() -> None:
    run, _ = run_routes([request(0)], {0: (None, 0)})
    (record,) = to_records(run)
    assert (record.path, record.worker, record.policy, record.decision_id) == (None,) * 4


def test_records_are_in_order_of_arrival() -> None:
    run, _ = run_routes([request(5, output=9), request(3, at_s=1.0)], {5: (None, 0), 3: (None, 1)})
    assert [record.index for record in to_records(run)] == [5, 3]
    assert to_records(Run([], 0.0, 0)) == []
