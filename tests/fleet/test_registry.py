"""What the core and the clients are told of workers and their models."""

from typing import Any

from gateway.core.types import Role, WorkerId
from gateway.fleet.registry import Registry
from gateway.settings import WorkerSettings

A, B = WorkerId("a"), WorkerId("b")


def registry(**models: tuple[str, ...] | None) -> Registry:
    """Workers by name, each with its configured models or None."""
    return Registry([WorkerSettings(id=name, url=f"http://{name}:1", models=known) for name, known in models.items()])


def card(model: str, **fields: Any) -> dict[str, Any]:
    return {"id": model, "object": "model", **fields}


def test_a_worker_with_configured_models_is_known_at_once() -> None:
    spec = registry(a=("llama", "mistral")).spec(A)
    assert spec is not None
    assert spec.models == ("llama", "mistral")


def test_a_worker_without_configured_models_is_unknown_until_it_says() -> None:
    workers = registry(a=None)
    assert workers.spec(A) is None
    assert workers.put_cards(A, [card("llama"), card("adapter", parent="llama")])
    spec = workers.spec(A)
    assert spec is not None
    assert spec.models == ("llama", "adapter")


def test_the_spec_carries_all_settings() -> None:
    settings = WorkerSettings(
        id="a",
        url="http://a:1",
        role=Role.PREFILL,
        models=("m",),
        kv_block_tokens=64,
        kv_total_blocks=100,
        max_batched_tokens=8192,
    )
    spec = Registry([settings]).spec(A)
    assert spec is not None
    assert (spec.worker_id, spec.url, spec.role) == (A, "http://a:1", Role.PREFILL)
    assert (spec.kv_block_tokens, spec.kv_total_blocks, spec.max_batched_tokens) == (64, 100, 8192)


def test_only_another_list_of_models_is_a_change() -> None:
    workers = registry(a=None)
    assert workers.put_cards(A, [card("llama", created=1)])
    assert not workers.put_cards(A, [card("llama", created=2)])
    assert workers.put_cards(A, [card("llama"), card("adapter")])
    assert workers.put_cards(A, [])
    assert not workers.put_cards(A, [])


def test_one_card_per_model_and_the_first_worker_of_the_settings_gives_it() -> None:
    workers = registry(a=None, b=None)
    workers.put_cards(B, [card("llama", owner="b"), card("only-b", owner="b")])
    workers.put_cards(A, [card("llama", owner="a"), card("only-a", owner="a")])
    assert workers.model_cards() == [
        card("llama", owner="a"),
        card("only-a", owner="a"),
        card("only-b", owner="b"),
    ]


def test_the_newest_cards_of_a_worker_are_shown() -> None:
    workers = registry(a=None)
    workers.put_cards(A, [card("llama", created=1)])
    workers.put_cards(A, [card("llama", created=2)])
    assert workers.model_cards() == [card("llama", created=2)]


def test_a_configured_list_hides_what_else_a_worker_serves() -> None:
    workers = registry(a=("llama",))
    workers.put_cards(A, [card("llama", created=7), card("hidden")])
    assert workers.model_cards() == [card("llama", created=7)]


def test_a_configured_model_without_a_card_gets_one_of_the_gateways() -> None:
    (made,) = registry(a=("llama",), b=("llama",)).model_cards()
    assert made == {"id": "llama", "object": "model", "created": 0, "owned_by": "tidegate"}
