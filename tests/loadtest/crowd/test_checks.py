"""A crowd's checks: all hold for a gateway that kept its word, and each can fail."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from loadtest.crowd.checks import Check, State, checks, parse_page
from loadtest.crowd.crowd import CrowdResult

RESULT = CrowdResult(started=10, outcomes=Counter(ok=7, left=3), short=0, peak_concurrent=4)
BEFORE = State(rss_bytes=100.0, inflight=0, connections=0, outcomes={"ok": 5, "cancelled": 1}, worker_inflight=0)
AFTER = replace(BEFORE, rss_bytes=109.0, outcomes={"ok": 12, "cancelled": 3})
GATEWAY = """\
tidegate_requests_total{model="m",path="local",outcome="ok"} 3
tidegate_requests_total{model="m",path="remote",outcome="ok"} 4
tidegate_requests_total{model="m",path="remote",outcome="cancelled"} 2
tidegate_inflight_requests{model="m"} 1
tidegate_worker_inflight_requests{worker="a",role="decode"} 2
tidegate_upstream_connections{worker="a",state="busy"} 2
tidegate_upstream_connections{worker="a",state="idle"} 5
process_resident_memory_bytes 1e+06
"""
WORKER = """\
vllm:num_requests_running{model_name="m"} 2
vllm:num_requests_waiting{model_name="m"} 1
"""


def failed(found: list[Check]) -> list[str]:
    return [check.name for check in found if not check.holds]


def test_a_state_is_read_from_the_pages() -> None:
    state = State.of(parse_page(GATEWAY), [parse_page(WORKER)] * 2)
    assert state.outcomes == {"ok": 7, "cancelled": 2}
    assert (state.inflight, state.connections, state.worker_inflight, state.rss_bytes) == (3, 7, 6, 1e6)
    assert not state.at_rest


def test_all_hold_where_one_client_left_before_its_request_was_whole() -> None:
    assert failed(checks(RESULT, BEFORE, AFTER, streams=4)) == []


def test_a_client_that_leaves_with_the_last_byte_is_ok_to_the_gateway() -> None:
    after = replace(AFTER, outcomes={"ok": 13, "cancelled": 3})
    assert failed(checks(RESULT, BEFORE, after, streams=4)) == []


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"peak_concurrent": 3}, "streams open at once"),
        ({"outcomes": Counter(ok=7, left=2, timeout=1)}, "streams lost"),
        ({"short": 1}, "streams with too few or too many tokens"),
        ({"outcomes": Counter(ok=8, left=2)}, "gateway counts each stream once"),
    ],
)
def test_what_clients_saw_can_fail_it(change: dict[str, Any], name: str) -> None:
    assert name in failed(checks(replace(RESULT, **change), BEFORE, AFTER, streams=4))


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"outcomes": {"ok": 13, "cancelled": 4}}, "gateway counts each stream once"),
        ({"outcomes": {"ok": 12, "cancelled": 3, "timeout": 1}}, "gateway counts each stream once"),
        ({"inflight": 1}, "afterwards in flight at gateway, at workers; connections to workers"),
        ({"worker_inflight": 1}, "afterwards in flight at gateway, at workers; connections to workers"),
        ({"connections": 1}, "afterwards in flight at gateway, at workers; connections to workers"),
        ({"rss_bytes": 111.0}, "gateway memory before, after"),
    ],
)
def test_what_the_gateway_says_can_fail_it(change: dict[str, Any], name: str) -> None:
    assert failed(checks(RESULT, BEFORE, replace(AFTER, **change), streams=4)) == [name]
