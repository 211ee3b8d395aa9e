"""The server's side of the shared state, without a server."""

from typing import Any

import pytest
from redis.cluster import key_slot
from redis.exceptions import ConnectionError as LostConnection

from gateway.fleet.shared.loads_server import RedisLoads
from gateway.fleet.shared.pins import SharedOptions
from gateway.fleet.shared.server import RedisServer


class Subscription:
    """Plays the library's."""

    def __init__(self, *messages: dict[str, Any] | None) -> None:
        self._messages = list(messages)

    async def get_message(self, timeout: float | None) -> dict[str, Any] | None:  # noqa: ASYNC109 (the library's)
        return self._messages.pop(0)


def server(url: str = "redis://localhost") -> RedisServer:
    return RedisServer(SharedOptions(url=url, prefix="a fleet"), clock=lambda: 0.0)


@pytest.mark.parametrize("url", ["localhost:6379", "http://localhost", "redis://localhost:port"])
def test_a_url_that_cannot_be_used_is_refused_at_once(url: str) -> None:
    with pytest.raises(ValueError, match=r"(?i)url|port"):
        server(url)


def test_all_keys_are_in_one_slot_of_a_cluster() -> None:
    one = server()
    assert len(set(one._keys)) == 5
    loads = RedisLoads(SharedOptions(url="redis://localhost", prefix="a fleet"))
    assert len({key_slot(key.encode()) for key in (*one._keys, *loads._keys)}) == 1


@pytest.mark.parametrize("sign", [None, {"type": "subscribe", "data": 1}])
async def test_a_subscription_made_anew_counts_as_lost(sign: dict[str, Any] | None) -> None:
    heard: list[tuple[Any, Any]] = []
    one = server()
    one._listener = Subscription({"type": "message", "data": b"them\n\n0\n0\n0000000000000007"}, sign)  # type: ignore[assignment]
    with pytest.raises(LostConnection, match="broke off"):
        await one.listen(lambda *news: heard.append(news))
    assert heard == [(7, None)]
