"""Model cards: what GET /v1/models shows of the whole fleet.

The rule of this module: a worker's card is passed on as it came. The gateway makes one only for a name that no
worker described.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gateway.core.types import WorkerId
from gateway.fleet.members import Member

Card = dict[str, Any]
"""vLLM's fields: id, object, created, owned_by, root, parent, max_model_len, permission."""


def merged_cards(
    members: Iterable[Member], cards: Mapping[WorkerId, Sequence[Card]], aliases: Mapping[str, str]
) -> list[Card]:
    """One card per model, the first member's, then one per alias of a model that is served."""
    merged: dict[str, Card] = {}
    for member in members:
        for card in cards.get(member.worker_id, ()):
            if member.models is None or card["id"] in member.models:
                merged.setdefault(card["id"], card)
        for model in member.models or ():
            merged.setdefault(model, _own_card(model))
    served = dict(merged)
    for alias, model in aliases.items():
        if model in served:
            merged.setdefault(alias, {**served[model], "id": alias, "root": model, "parent": None})
    return list(merged.values())


def default_model(cards: Sequence[Card]) -> str | None:
    """The first name of the only base model among the cards; None where there are several, or none.

    Adapters have a parent; several names of one model have the same root.
    """
    bases = [card for card in cards if card.get("parent") is None]
    roots = {card.get("root") or card["id"] for card in bases}
    return bases[0]["id"] if len(roots) == 1 else None


def known_cards(data: Sequence[Any]) -> list[Card]:
    """The entries of a worker's model list that are cards."""
    return [card for card in data if isinstance(card, dict) and isinstance(card.get("id"), str)]


def _own_card(model: str) -> Card:
    return {"id": model, "object": "model", "created": 0, "owned_by": "tidegate"}
