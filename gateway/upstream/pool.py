"""Who gets which connection.

Assignment is synchronous: `start` takes the youngest idle connection, opens one, or queues, and returns. Exchanges
of one origin wait in order of arrival. A request whose reused connection died before a response byte is sent once
more on a fresh one; a fresh connection's failure is final, so that there is no second retry.
"""

import asyncio
from collections import OrderedDict
from dataclasses import dataclass
from functools import partial

from gateway.upstream.alarm import Alarm, Scheduler
from gateway.upstream.connection import Connection, Connector, open_tcp
from gateway.upstream.errors import ConnectFailed, ErrorKind, PoolClosed
from gateway.upstream.exchange import Exchange, Limits, ResponseListener
from gateway.upstream.heads import UpstreamRequest, build_head
from gateway.upstream.origin import Origin

SWEEP_INTERVAL_S = 0.5
"""Least time between two looks for expired idle connections; one may outlive its expiry by this much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolStats:
    """The pool at one moment, and what it has done since it was made."""

    open: int
    """Connections now: dialling, busy or idle."""
    idle: int
    waiting: int
    """Exchanges queued for a connection."""
    created: int
    reused: int
    stale_retries: int


class _Lane:
    """The connections of one authority, and who waits for them."""

    __slots__ = ("connections", "idle", "waiting")

    def __init__(self) -> None:
        self.connections: set[Connection] = set()
        self.idle: list[Connection] = []
        self.waiting: OrderedDict[Exchange, Alarm] = OrderedDict()

    def take_idle(self) -> Connection | None:
        """Return the connection that was used last: the least likely to have been closed by the worker."""
        while self.idle:
            connection = self.idle.pop()
            if connection.usable():
                return connection
            # Otherwise its loss is about to be reported, and `connection_closed` takes it off the books.
        return None

    def take_waiting(self) -> Exchange:
        """Return the exchange that has waited longest."""
        exchange, alarm = self.waiting.popitem(last=False)
        alarm.close()
        return exchange

    def drop(self, exchange: Exchange) -> None:
        """Forget an aborted exchange that waits here."""
        alarm = self.waiting.pop(exchange)
        alarm.close()

    def reading_changed(self, exchange: Exchange) -> None:
        """Nothing is read yet; the connection will look at `paused`."""


class UpstreamPool:
    """Connections to all workers. Make it inside a running loop, or give it a scheduler.

    The limits given here apply where `start` is given none.
    """

    def __init__(self, limits: Limits, *, scheduler: Scheduler | None = None, connector: Connector = open_tcp) -> None:
        self._limits = limits
        self._scheduler: Scheduler = scheduler or asyncio.get_running_loop()
        self._connector = connector
        self._lanes: dict[bytes, _Lane] = {}
        self._expiry = Alarm(self._scheduler, self._expire)
        self._sockets: set[Connection] = set()
        self._drained: asyncio.Future[None] | None = None
        self._closed = False
        self._created = 0
        self._reused = 0
        self._stale_retries = 0

    def start(
        self,
        origin: Origin,
        request: UpstreamRequest,
        listener: ResponseListener,
        limits: Limits | None = None,
    ) -> Exchange:
        """Send `request`; the listener is called later, never from in here.

        Raises UnsafeHead for a request that must not be sent and PoolClosed after `aclose`; nothing was begun then.
        """
        if self._closed:
            raise PoolClosed(origin)
        head = build_head(request, origin)
        lane = self._lanes.get(origin.authority)
        if lane is None:
            lane = self._lanes[origin.authority] = _Lane()
        exchange = Exchange(
            origin=origin,
            segments=(head, *request.segments),
            head_only=request.method == b"HEAD",
            listener=listener,
            limits=limits or self._limits,
            carrier=lane,
        )
        self._assign(lane, exchange)
        return exchange

    def stats(self) -> PoolStats:
        """Count what is there now."""
        lanes = self._lanes.values()
        return PoolStats(
            open=sum(len(lane.connections) for lane in lanes),
            idle=sum(len(lane.idle) for lane in lanes),
            waiting=sum(len(lane.waiting) for lane in lanes),
            created=self._created,
            reused=self._reused,
            stale_retries=self._stale_retries,
        )

    def connections(self, origin: Origin) -> tuple[int, int]:
        """Connections to one origin now: (in use, idle)."""
        lane = self._lanes.get(origin.authority)
        if lane is None:
            return 0, 0
        return len(lane.connections) - len(lane.idle), len(lane.idle)

    async def aclose(self) -> None:
        """Close every connection, fail what is in flight or waiting with PoolClosed, and wait for the sockets."""
        self._closed = True
        self._expiry.close()
        for lane in list(self._lanes.values()):
            self._close_lane(lane)
        if self._sockets:
            self._drained = self._drained or asyncio.get_running_loop().create_future()
            await self._drained

    # what connections tell

    def connection_freed(self, connection: Connection) -> None:
        """Give it to whoever has waited longest, or keep it for a while."""
        lane = self._lanes[connection.origin.authority]
        if lane.waiting:
            self._reuse(connection, lane.take_waiting())
        elif len(lane.idle) >= connection.limits.max_idle:
            connection.retire()
        else:
            lane.idle.append(connection)
            connection.expires_at_s = self._scheduler.time() + connection.limits.idle_expiry_s
            self._expiry.set_by(connection.expires_at_s)

    def connection_closed(self, connection: Connection) -> None:
        """Let the longest waiting exchange open a connection in its place."""
        lane = self._lanes[connection.origin.authority]
        lane.connections.remove(connection)
        if connection in lane.idle:
            lane.idle.remove(connection)
        if lane.waiting:
            self._open(lane, lane.take_waiting())
        elif not lane.connections:
            del self._lanes[connection.origin.authority]

    def connection_stale(self, connection: Connection, exchange: Exchange) -> None:
        """Send the exchange again: before those that wait, and not on another idle connection, likely as stale."""
        lane = self._lanes[connection.origin.authority]
        lane.connections.remove(connection)
        self._stale_retries += 1
        self._open(lane, exchange)

    def socket_gone(self, connection: Connection) -> None:
        """Let `aclose` return once the last socket is closed."""
        self._sockets.discard(connection)
        if self._drained is not None and not self._sockets and not self._drained.done():
            self._drained.set_result(None)

    # details

    def _assign(self, lane: _Lane, exchange: Exchange) -> None:
        connection = lane.take_idle()
        if connection is not None:
            self._reuse(connection, exchange)
        elif len(lane.connections) < exchange.limits.max_connections:
            self._open(lane, exchange)
        else:
            self._enqueue(lane, exchange)

    def _reuse(self, connection: Connection, exchange: Exchange) -> None:
        self._reused += 1
        connection.send(exchange)

    def _open(self, lane: _Lane, exchange: Exchange) -> None:
        connection = Connection(exchange.origin, exchange.limits, self, self._scheduler)
        self._created += 1
        self._sockets.add(connection)
        lane.connections.add(connection)
        connection.dial(self._connector, exchange)

    def _enqueue(self, lane: _Lane, exchange: Exchange) -> None:
        alarm = Alarm(self._scheduler, partial(self._waited_too_long, lane, exchange))
        lane.waiting[exchange] = alarm
        alarm.set(exchange.limits.connect_timeout_s)

    def _waited_too_long(self, lane: _Lane, exchange: Exchange) -> None:
        lane.drop(exchange)
        words = f"no connection came free within {exchange.limits.connect_timeout_s:g} s"
        exchange.fail(ConnectFailed(exchange.origin, ErrorKind.POOL_TIMEOUT, words))

    def _expire(self) -> None:
        now_s = self._scheduler.time()
        idle = [connection for lane in self._lanes.values() for connection in lane.idle]
        for connection in idle:
            if connection.expires_at_s <= now_s:
                connection.retire()
        remaining = [c.expires_at_s for c in idle if c.expires_at_s > now_s]
        if remaining:
            self._expiry.set_by(max(min(remaining), now_s + SWEEP_INTERVAL_S))

    def _close_lane(self, lane: _Lane) -> None:
        while lane.waiting:
            exchange = lane.take_waiting()
            exchange.fail(PoolClosed(exchange.origin))
        for connection in list(lane.connections):
            connection.fail(PoolClosed(connection.origin))
