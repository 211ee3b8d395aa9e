"""What the core and the clients are told of workers that come, change, drain and leave."""

from typing import Any

import pytest

from gateway.core.events import WorkerDown, WorkerDraining, WorkerUp
from gateway.core.types import Role, WorkerId
from gateway.fleet.members import endpoint_member, members_of, worker_member
from gateway.fleet.registry import WorkerExists
from gateway.settings import EndpointSettings, Settings, SettingsError, WorkerSettings
from tests.fleet.fleet_lab import NOW_S, Fleet, Watched, card, member

A, B = WorkerId("a"), WorkerId("b")


def fleet_of(**models: tuple[str, ...] | None) -> Fleet:
    """Workers by name, each with its configured models or None."""
    return Fleet(*(member(name, models=known) for name, known in models.items()))


# -- what is known of a worker ---------------------------------------------------------------------------------------


def test_a_worker_with_configured_models_is_announced_as_it_joins() -> None:
    fleet = fleet_of(a=("llama", "mistral"))
    (up,) = fleet.observed.of(WorkerUp, "a")
    assert (up.at_s, up.spec.models) == (NOW_S, ("llama", "mistral"))


def test_a_worker_without_configured_models_is_announced_once_it_says() -> None:
    fleet = fleet_of(a=None)
    assert fleet.told == []
    fleet.put_cards(A, [card("llama"), card("adapter", parent="llama")])
    (up,) = fleet.observed.of(WorkerUp, "a")
    assert up.spec.models == ("llama", "adapter")


def test_the_spec_carries_all_settings() -> None:
    settings = WorkerSettings(
        id="a",
        url="http://a:1/base/",
        role=Role.PREFILL,
        models=("m",),
        kv_block_tokens=64,
        kv_total_blocks=100,
        max_batched_tokens=8192,
        caches_prefixes=False,
    )
    fleet = Fleet(worker_member(settings))
    spec = fleet.spec(A)
    assert spec is not None
    assert (spec.worker_id, spec.url, spec.role, spec.splits) == (A, "http://a:1/base/", Role.PREFILL, False)
    assert (spec.kv_block_tokens, spec.kv_total_blocks, spec.max_batched_tokens) == (64, 100, 8192)
    assert not spec.caches_prefixes
    assert str(fleet.origins[A]) == "http://a:1/base"


def test_a_graph_that_splits_by_itself_decodes_by_its_local_path_and_keeps_the_other() -> None:
    settings = EndpointSettings(id="a", models=("m",), local_url="http://agg:1", remote_url="http://pd:2/x")
    fleet = Fleet(endpoint_member(settings))
    spec = fleet.spec(A)
    assert spec is not None
    assert (spec.role, spec.splits, spec.url) == (Role.DECODE, True, "http://agg:1")
    assert (str(fleet.origins[A]), str(fleet.remote_origins[A])) == ("http://agg:1", "http://pd:2/x")
    fleet.remove(A)
    assert (fleet.origins, fleet.remote_origins) == ({}, {})


@pytest.mark.parametrize(
    ("tree", "field"),
    [
        ({"workers": [{"id": "a", "url": "http://h:99999"}]}, r"workers\.a\.url"),
        ({"endpoints": [{"id": "e", "local_url": "http://h:0", "remote_url": "http://h"}]}, r"endpoints\.e\.local_url"),
        ({"endpoints": [{"id": "e", "local_url": "http://h", "remote_url": "http://u@h"}]}, r"endpoints\.e\.remote"),
    ],
)
def test_a_url_that_is_none_is_named(tree: dict[str, Any], field: str) -> None:
    with pytest.raises(SettingsError, match=field):
        members_of(Settings(**tree))


def test_only_another_list_of_models_is_announced_again() -> None:
    fleet = fleet_of(a=None)
    for cards in ([card("llama", created=1)], [card("llama", created=2)], [card("llama"), card("x")], [], []):
        fleet.put_cards(A, cards)
    assert [up.spec.models for up in fleet.observed.of(WorkerUp, "a")] == [("llama",), ("llama", "x"), ()]


# -- coming and going ------------------------------------------------------------------------------------------------


def test_a_second_worker_of_a_name_is_refused() -> None:
    fleet = fleet_of(a=("m",))
    with pytest.raises(WorkerExists, match="'a'"):
        fleet.add(member("a"))


def test_a_worker_that_drains_is_not_brought_back_by_its_models() -> None:
    fleet = fleet_of(a=None)
    fleet.put_cards(A, [card("llama")])
    fleet.drain(A)
    fleet.drain(A)
    fleet.put_cards(A, [card("llama"), card("adapter")])
    assert fleet.told == [("WorkerUp", "a"), ("WorkerDraining", "a")]


def test_an_idle_worker_leaves_at_once() -> None:
    fleet = fleet_of(a=("m",))
    fleet.watcher = watched = Watched()
    watched.now = {"a"}
    assert fleet.remove(A)
    assert fleet.told[1:] == [("WorkerDraining", "a"), ("WorkerDown", "a")]
    assert (fleet.members, fleet.origins, watched.now) == ({}, {}, set())


def test_a_busy_worker_leaves_once_nothing_is_in_flight_there() -> None:
    fleet = fleet_of(a=("m",), b=("m",))
    fleet.busy = {"a": 1}
    assert not fleet.remove(A)
    fleet.settle()
    assert fleet.observed.of(WorkerDown, "a") == []
    assert A in fleet.origins
    fleet.busy = {}
    fleet.settle()
    assert len(fleet.observed.of(WorkerDown, "a")) == 1
    assert list(fleet.members) == [B]


def test_a_worker_forced_out_keeps_its_address_until_its_requests_have_ended() -> None:
    fleet = fleet_of(a=("m",))
    fleet.busy = {"a": 1}
    assert fleet.remove(A, force=True)
    assert fleet.told[1:] == [("WorkerDown", "a")]
    fleet.settle()
    assert A in fleet.origins
    fleet.busy = {}
    fleet.settle()
    assert fleet.origins == {}


def test_a_worker_may_be_forced_out_while_it_drains() -> None:
    fleet = fleet_of(a=("m",))
    fleet.busy = {"a": 1}
    fleet.remove(A)
    assert fleet.remove(A, force=True)
    fleet.busy = {}
    fleet.settle()
    assert len(fleet.observed.of(WorkerDown, "a")) == 1


def test_a_name_may_come_back_as_another_worker_once_the_first_has_left() -> None:
    fleet = fleet_of(a=("m",))
    fleet.busy = {"a": 1}
    fleet.remove(A)
    fleet.add(member("a", base_path="/new", models=("n",)))
    assert str(fleet.origins[A]) == "http://a"
    fleet.busy = {}
    fleet.settle()
    assert str(fleet.origins[A]) == "http://a/new"
    assert fleet.told[1:] == [("WorkerDraining", "a"), ("WorkerDown", "a"), ("WorkerUp", "a")]
    assert not fleet.is_draining(A)


def test_a_change_that_keeps_the_address_is_made_at_once() -> None:
    fleet = fleet_of(a=("m",))
    fleet.busy = {"a": 1}
    fleet.put(member("a", models=("m", "n"), role=Role.BOTH))
    assert fleet.told == [("WorkerUp", "a"), ("WorkerUp", "a")]
    spec = fleet.spec(A)
    assert spec is not None
    assert (spec.models, spec.role) == (("m", "n"), Role.BOTH)


def test_a_change_of_address_drains_the_old_worker_first() -> None:
    fleet = fleet_of(a=("m",))
    fleet.busy = {"a": 1}
    fleet.put(member("a", base_path="/new", models=("m",)))
    assert fleet.is_draining(A)
    assert str(fleet.origins[A]) == "http://a"
    fleet.busy = {}
    fleet.settle()
    assert str(fleet.origins[A]) == "http://a/new"
    assert fleet.told[-1] == ("WorkerUp", "a")


def test_who_joins_is_watched_and_so_is_who_comes_in_its_place() -> None:
    fleet = Fleet()
    fleet.watcher = watched = Watched()
    fleet.put(member("a", models=("m",)))
    fleet.put(member("a", base_path="/new", models=("m",)))
    assert watched.now == {"a"}
    assert len(fleet.observed.of(WorkerDraining, "a")) == 1


# -- model cards -----------------------------------------------------------------------------------------------------


def test_one_card_per_model_and_the_first_worker_of_the_settings_gives_it() -> None:
    fleet = fleet_of(a=None, b=None)
    fleet.put_cards(B, [card("llama", owner="b"), card("only-b", owner="b")])
    fleet.put_cards(A, [card("llama", owner="a"), card("only-a", owner="a")])
    assert fleet.model_cards({}) == [
        card("llama", owner="a"),
        card("only-a", owner="a"),
        card("only-b", owner="b"),
    ]


def test_the_newest_cards_of_a_worker_are_shown() -> None:
    fleet = fleet_of(a=None)
    fleet.put_cards(A, [card("llama", created=1)])
    fleet.put_cards(A, [card("llama", created=2)])
    assert fleet.model_cards({}) == [card("llama", created=2)]


def test_a_configured_list_hides_what_else_a_worker_serves() -> None:
    fleet = fleet_of(a=("llama",))
    fleet.put_cards(A, [card("llama", created=7), card("hidden")])
    assert fleet.model_cards({}) == [card("llama", created=7)]


def test_a_configured_model_without_a_card_gets_one_of_the_gateways() -> None:
    (made,) = fleet_of(a=("llama",), b=("llama",)).model_cards({})
    assert made == {"id": "llama", "object": "model", "created": 0, "owned_by": "tidegate"}


def test_an_alias_has_the_card_of_what_it_stands_for() -> None:
    fleet = fleet_of(a=None)
    fleet.put_cards(A, [card("llama", max_model_len=8192, parent=None), card("lora", parent="llama", root="/lora")])
    cards = {each["id"]: each for each in fleet.model_cards({"gpt": "llama", "tuned": "lora", "lost": "nobody"})}
    assert cards["gpt"] == card("gpt", max_model_len=8192, root="llama", parent=None)
    assert cards["tuned"] == card("tuned", root="lora", parent=None)
    assert cards["lora"]["parent"] == "llama"
    assert "lost" not in cards


@pytest.mark.parametrize(
    ("cards", "model"),
    [
        ([], None),
        ([card("llama")], "llama"),
        ([card("llama"), card("lora", parent="llama")], "llama"),
        ([card("llama", root="/m"), card("llama-2", root="/m")], "llama"),
        ([card("llama"), card("mistral")], None),
    ],
)
def test_a_request_without_a_model_means_the_only_base_model(cards: list[dict[str, Any]], model: str | None) -> None:
    fleet = fleet_of(a=None)
    fleet.put_cards(A, cards)
    assert fleet.default_model() == model
