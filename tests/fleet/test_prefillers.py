"""Prefill workers that requests name: which may be, and how long they are remembered."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.events import WorkerDown, WorkerUp
from gateway.core.types import Role, WorkerId
from gateway.fleet.allow import AllowList, HostPort, parse_host_port
from gateway.fleet.prefillers import prefiller_id
from tests.fleet.fleet_lab import Fleet, Watched, card, member

ANY = AllowList(("0.0.0.0/0",))


def sidecar(*, allow: AllowList = ANY, room: int = 2) -> Fleet:
    """One decode engine that serves `m`."""
    return Fleet(member("engine", models=("m",)), allow=allow, max_prefillers=room)


# -- which may be named ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("10.0.0.7:8000", HostPort("10.0.0.7", 8000)),
        ("GPU-3.pods:80", HostPort("gpu-3.pods", 80)),
        ("[FD00::0:1]:65535", HostPort("fd00::1", 65535)),
        ("prefill_1:1", HostPort("prefill_1", 1)),
    ],
)
def test_a_host_and_a_port_are_read_into_one_spelling(text: str, target: HostPort) -> None:
    assert parse_host_port(text) == target


@pytest.mark.parametrize(
    "text",
    [
        "",
        ":",
        ":80",
        "10.0.0.7",
        "10.0.0.7:",
        "10.0.0.7:0",
        "10.0.0.7:65536",
        "10.0.0.7:8 0",
        "10.0.0.7:+80",
        "10.0.0.7:\u0661",
        "fd00::1:80",
        "[fd00::1]",
        "[fe80::1%eth0]:80",
        "[10.0.0.7]:80",
        "http://10.0.0.7:80",
        "user@10.0.0.7:80",
        "10.0.0.7/x:80",
        "10.0.0.7#:80",
        "10.0.0.7\n:80",
        "h\u00f6st:80",
        "a" * 400 + ":80",
        "10.0.0.7:80,10.0.0.8:80",
    ],
)
def test_anything_else_is_no_address(text: str) -> None:
    assert parse_host_port(text) is None


@pytest.mark.parametrize(
    ("rule", "text", "permitted"),
    [
        ("10.0.0.0/8", "10.1.2.3:80", True),
        ("10.0.0.0/8", "11.1.2.3:80", False),
        ("10.0.0.0/8", "10.1.2.3.nip.io:80", False),
        ("10.0.0.0/8", "010.1.2.3:80", False),
        ("10.0.0.0/8", "167838211:80", False),
        ("10.0.0.0/8", "[::ffff:10.1.2.3]:80", False),
        ("fd00::/8", "[fd12::1]:80", True),
        ("10.0.0.7", "10.0.0.7:1", True),
        ("10.0.0.7", "10.0.0.70:1", False),
        ("10.0.0.7:8000", "10.0.0.7:8000", True),
        ("10.0.0.7:8000", "10.0.0.7:8001", False),
        ("[fd00::1]", "[fd00:0::1]:5", True),
        ("fd00::1", "[fd00::1]:5", True),
        ("[fd00::1]:8000", "[fd00::1]:8001", False),
        ("gpu-1", "GPU-1:9", True),
        ("gpu-1", "gpu-1.evil:9", False),
        ("gpu-1:8000", "gpu-1:9", False),
    ],
)
def test_what_is_not_listed_may_not_be_named(rule: str, text: str, permitted: bool) -> None:
    target = parse_host_port(text)
    assert (target is not None and AllowList((rule,)).permits(target)) is permitted


def test_an_empty_list_allows_nothing() -> None:
    assert not AllowList(()).permits(HostPort("127.0.0.1", 80))


@pytest.mark.parametrize("rule", ["", "10.0.0.1/8", "10.0.0.0/33", "a b", "http://a", "a:0", "*"])
def test_a_rule_that_is_none_is_refused(rule: str) -> None:
    with pytest.raises(ValueError, match=r"is no host|host bits|does not appear"):
        AllowList((rule,))


@given(st.text())
def test_no_text_breaks_the_reader(text: str) -> None:
    target = parse_host_port(text)
    assert target is None or parse_host_port(str(target)) == target


# -- how they are remembered -----------------------------------------------------------------------------------------


def test_the_first_naming_makes_a_prefill_worker_of_the_engines_models_that_nobody_probes() -> None:
    fleet = sidecar()
    fleet.watcher = watched = Watched()
    worker_id = fleet.offer("10.0.0.7:8000")
    assert worker_id == "prefiller-10.0.0.7-8000"
    (up,) = fleet.observed.of(WorkerUp, worker_id)
    assert (up.spec.role, up.spec.models, up.spec.url) == (Role.PREFILL, ("m",), "http://10.0.0.7:8000")
    assert str(fleet.origins[worker_id]) == "http://10.0.0.7:8000"
    assert watched.now == set()
    assert fleet.offer("10.0.0.7:8000") == worker_id
    assert len(fleet.observed.of(WorkerUp, worker_id)) == 1


def test_a_prefiller_is_known_to_the_core_only_when_the_engines_models_are_and_follows_them() -> None:
    fleet = Fleet(member("engine"), allow=ANY)
    worker_id = fleet.offer("10.0.0.7:8000")
    assert worker_id is not None
    assert fleet.observed.of(WorkerUp, worker_id) == []
    fleet.put_cards(WorkerId("engine"), [card("m")])
    fleet.put_cards(WorkerId("engine"), [card("m"), card("lora")])
    assert [up.spec.models for up in fleet.observed.of(WorkerUp, worker_id)] == [("m",), ("m", "lora")]


def test_what_may_not_be_named_is_not_made() -> None:
    fleet = sidecar(allow=AllowList(("10.0.0.7:8000",)))
    assert fleet.offer("10.0.0.7:9000") is None
    assert fleet.offer("nonsense") is None
    assert list(fleet.members) == ["engine"]


def test_the_one_named_longest_ago_is_forgotten_for_a_new_one() -> None:
    fleet = sidecar(room=2)
    first, second = fleet.offer("10.0.0.1:1"), fleet.offer("10.0.0.2:1")
    fleet.offer("10.0.0.1:1")
    third = fleet.offer("10.0.0.3:1")
    assert second is not None
    assert len(fleet.observed.of(WorkerDown, second)) == 1
    assert list(fleet.members) == ["engine", first, third]
    assert fleet.offer("10.0.0.2:1") == second


def test_one_with_requests_in_flight_is_never_forgotten() -> None:
    fleet = sidecar(room=2)
    first, second = fleet.offer("10.0.0.1:1"), fleet.offer("10.0.0.2:1")
    assert first is not None
    assert second is not None
    fleet.busy = {first: 1}
    third = fleet.offer("10.0.0.3:1")
    assert list(fleet.members) == ["engine", first, third]
    fleet.busy = {first: 1, str(third): 1}
    assert fleet.offer("10.0.0.4:1") is None
    assert list(fleet.members) == ["engine", first, third]


def test_one_no_longer_allowed_drains_and_leaves() -> None:
    fleet = sidecar()
    first = fleet.offer("10.0.0.1:1")
    assert first is not None
    fleet.busy = {first: 1}
    fleet.allow(AllowList(("10.0.0.2",)))
    assert fleet.is_draining(first)
    assert fleet.offer("10.0.0.1:1") is None
    fleet.busy = {}
    fleet.settle()
    assert list(fleet.members) == ["engine"]


def test_a_worker_of_the_settings_is_not_mistaken_for_a_named_one() -> None:
    fleet = Fleet(member("prefiller-10.0.0.7-8000", models=("m",)), allow=ANY)
    assert fleet.offer("10.0.0.7:8000") is None


@given(st.sets(st.tuples(st.text("abc.-_:", min_size=1, max_size=60), st.integers(1, 65535)), min_size=2, max_size=2))
def test_two_targets_have_two_names_that_are_safe_everywhere(targets: set[tuple[str, int]]) -> None:
    names = [prefiller_id(HostPort(host, port)) for host, port in targets]
    assert len(set(names)) == 2
    for name in names:
        assert len(name) <= 63
        assert set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789._-")
