"""How a fleet is written."""

import pytest

from gateway.core.types import Role
from loadtest.fleet.pools import Pools, parse_pools


@pytest.mark.parametrize(
    ("text", "pools"),
    [
        ("2P2D", Pools(prefill=2, decode=2)),
        ("1p3d", Pools(prefill=1, decode=3)),
        ("0P1D", Pools(decode=1)),
        ("12P34D", Pools(prefill=12, decode=34)),
        ("4A", Pools(both=4)),
        ("1a", Pools(both=1)),
    ],
)
def test_pools_are_read(text: str, pools: Pools) -> None:
    assert parse_pools(text) == pools


@pytest.mark.parametrize("text", ["", "2", "2P", "2D", "2D2P", "P2D", "2P2D ", "-1A", "2P2D4A", "1.5A", "2P2DX"])
def test_anything_else_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="like 2P2D or 4A"):
        parse_pools(text)


@pytest.mark.parametrize("text", ["0A", "3P0D", "0P0D"])
def test_a_fleet_must_be_able_to_decode(text: str) -> None:
    with pytest.raises(ValueError, match="could decode"):
        parse_pools(text)


def test_every_worker_has_a_name_and_a_role() -> None:
    assert parse_pools("1P2D").roles() == [
        ("prefill-0", Role.PREFILL),
        ("decode-0", Role.DECODE),
        ("decode-1", Role.DECODE),
    ]
    assert parse_pools("2A").roles() == [("worker-0", Role.BOTH), ("worker-1", Role.BOTH)]


@pytest.mark.parametrize("text", ["2P6D", "1P1D", "4A"])
def test_pools_are_written_as_they_are_read(text: str) -> None:
    assert str(parse_pools(text)) == text
