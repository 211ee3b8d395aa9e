"""What the gateway's page says of what is left."""

import pytest

from loadtest.crowd.checks import parse_page
from loadtest.plane import state
from loadtest.plane.state import GatewayState, settled

EMPTY = """\
tidegate_requests_total{model="m",path="local",outcome="ok"} 3
tidegate_requests_total{model="m",path="remote",outcome="ok"} 4
tidegate_requests_total{model="m",path="remote",outcome="cancelled"} 2
tidegate_inflight_requests{model="m"} 0
tidegate_upstream_connections{worker="a",state="busy"} 0
tidegate_upstream_connections{worker="a",state="idle"} 5
"""


def read(*more: str) -> GatewayState:
    return GatewayState.of(parse_page(EMPTY + "".join(f"{line}\n" for line in more)))


def test_idle_connections_are_no_remains() -> None:
    found = read()
    assert found.is_empty
    assert (found.busy, found.connections) == (0, 5)
    assert found.outcomes == {"ok": 7, "cancelled": 2}


@pytest.mark.parametrize(
    "line",
    [
        'tidegate_inflight_requests{model="n"} 1',
        'tidegate_worker_inflight_requests{worker="a",role="decode"} 1',
        'tidegate_worker_inflight_tokens{worker="a",role="decode"} 16',
        "tidegate_waiting_requests 1",
        'tidegate_upstream_connections{worker="b",state="busy"} 1',
    ],
)
def test_anything_else_is(line: str) -> None:
    assert not read(line).is_empty


def test_what_is_held_is_told() -> None:
    assert read("tidegate_waiting_requests 3").words.endswith("waiting_requests 3, busy connections 0")


def test_it_is_looked_at_until_it_has_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    pages = [parse_page(EMPTY + "tidegate_waiting_requests 1\n"), parse_page(EMPTY), parse_page("")]
    asked: list[str] = []

    def read_page(url: str) -> object:
        asked.append(url)
        return pages.pop(0)

    monkeypatch.setattr(state, "read_page", read_page)
    monkeypatch.setattr(state, "POLL_S", 0.0)
    assert settled("http://gateway", lambda found: found.is_empty, within_s=60.0).is_empty
    assert asked == ["http://gateway/metrics"] * 2


def test_when_time_is_up_the_last_state_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "read_page", lambda _: parse_page(EMPTY + "tidegate_waiting_requests 1\n"))
    assert not settled("http://gateway", lambda found: found.is_empty, within_s=-1.0).is_empty
