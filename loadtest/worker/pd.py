"""Prefill on one worker, decode on another: the NIXL hand-over.

The prefill side holds a finished leg's KV under its request id. The decode side first claims it, which only one
decode leg ever can, then loads it, then releases it. What is never claimed or released goes when its lease ends.
Real NIXL does this on a side channel; here it is two small POSTs to the holder's own HTTP port.
"""

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import msgspec

from loadtest.worker.bodies import KvTransferParams

CLAIM_PATH = "/emulator/kv_claim"
RELEASE_PATH = "/emulator/kv_release"
PEER_TIMEOUT_S = 2.0
"""A holder that has not answered by then counts as gone."""


class ClaimRefusal(StrEnum):
    """Why KV could not be claimed."""

    UNKNOWN = "unknown"
    """No such hold here: never made, released, expired, or made by an earlier process."""
    TAKEN = "taken"
    """Another decode leg has claimed it."""


@dataclass(slots=True)
class _Hold:
    tokens: int
    expires_at_s: float
    claimed: bool = False


class HeldKv:
    """The KV that this worker's finished prefill legs hold; times are the engine's seconds."""

    def __init__(self, *, engine_id: str, lease_s: float) -> None:
        self.engine_id = engine_id
        self.expired = 0
        self._lease_s = lease_s
        self._holds: dict[str, _Hold] = {}

    def hold(self, request_id: str, *, tokens: int, now_s: float) -> None:
        """A prefill leg ended at `now_s`; its KV waits for a decode leg."""
        self._holds[request_id] = _Hold(tokens=tokens, expires_at_s=now_s + self._lease_s)

    def claim(self, request_id: str, engine_id: str, *, now_s: float) -> int | ClaimRefusal:
        """Promise the KV to the asking decode leg; the number of prompt tokens that it covers."""
        self.expire(now_s)
        hold = self._holds.get(request_id)
        if hold is None or engine_id != self.engine_id:
            return ClaimRefusal.UNKNOWN
        if hold.claimed:
            return ClaimRefusal.TAKEN
        hold.claimed = True
        return hold.tokens

    def release(self, request_id: str) -> None:
        """The KV has been read."""
        self._holds.pop(request_id, None)

    def expire(self, now_s: float) -> None:
        """Forget the holds whose lease has ended; they were made in the order of their leases."""
        while self._holds:
            request_id, hold = next(iter(self._holds.items()))
            if hold.expires_at_s > now_s:
                return
            del self._holds[request_id]
            self.expired += 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteKv:
    """Where a decode leg's KV waits."""

    host: str
    port: int
    engine_id: str
    request_id: str


def remote_kv(params: KvTransferParams) -> RemoteKv | None:
    """What a decode leg is to load, None where there is nothing: as in vLLM, incomplete params are passed over."""
    if not params.do_remote_prefill or not params.remote_block_ids:
        return None
    host, port = params.remote_host, params.remote_port
    engine_id, request_id = params.remote_engine_id, params.remote_request_id
    if host is None or port is None or engine_id is None or request_id is None:
        return None
    return RemoteKv(host=host, port=port, engine_id=engine_id, request_id=request_id)


def handover(
    *, engine_id: str, request_id: str, address: tuple[str, int], tokens: int, cached_tokens: int, blocks: int
) -> dict[str, object]:
    """The `kv_transfer_params` of a prefill leg's answer, in the fields and order of vLLM 0.32.

    Block ids only tell how many blocks there are: the claim goes by the request id.
    """
    return {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_block_ids": [list(range(1, blocks + 1))],
        "remote_engine_id": engine_id,
        "remote_request_id": request_id,
        "remote_host": address[0],
        "remote_port": address[1],
        "tp_size": 1,
        "dcp_size": 1,
        "pp_size": 1,
        "remote_num_tokens": tokens,
        "remote_blocks_expiry_time": None,
        "transfer_mode": "pull",
        "remote_prefill_cached_tokens": cached_tokens,
    }


class KvPeers(Protocol):
    """The other workers, as holders of KV."""

    async def claim(self, remote: RemoteKv) -> int | None:
        """Ask the holder for the KV; its tokens, or None where it cannot be had."""

    def release(self, remote: RemoteKv) -> None:
        """Tell the holder that the KV has been read, without waiting for it."""


class RemotePull:
    """One decode leg's claim on another worker's KV; what was claimed is released exactly once."""

    def __init__(self, peers: KvPeers, remote: RemoteKv) -> None:
        self._peers = peers
        self._remote = remote
        self._owed = False

    async def claim(self) -> int | None:
        """The tokens of KV that will be transferred, or None where it cannot be had."""
        tokens = await self._peers.claim(self._remote)
        self._owed = tokens is not None
        return tokens

    def release(self) -> None:
        """Let the holder free its blocks: the transfer is over, or will not be made."""
        if self._owed:
            self._owed = False
            self._peers.release(self._remote)


class HttpKvPeers:
    """Reaches holders over HTTP, one short connection per message."""

    def __init__(self) -> None:
        self._releases: set[asyncio.Task[None]] = set()

    async def claim(self, remote: RemoteKv) -> int | None:
        """POST /emulator/kv_claim; an error of any kind is a claim that failed."""
        message = {"request_id": remote.request_id, "engine_id": remote.engine_id}
        try:
            status, body = await _post(remote, CLAIM_PATH, message)
            return msgspec.json.decode(body, type=_Claimed).tokens if status == 200 else None
        except _PEER_FAILURES:
            return None

    def release(self, remote: RemoteKv) -> None:
        """POST /emulator/kv_release in the background; if it is lost, the lease ends the hold."""
        task = asyncio.create_task(self._send_release(remote))
        self._releases.add(task)
        task.add_done_callback(self._releases.discard)

    async def drain(self) -> None:
        """Wait until every release has been sent."""
        await asyncio.gather(*self._releases)

    async def _send_release(self, remote: RemoteKv) -> None:
        with suppress(*_PEER_FAILURES):
            await _post(remote, RELEASE_PATH, {"request_id": remote.request_id})


class _Claimed(msgspec.Struct):
    tokens: int


_PEER_FAILURES = (OSError, TimeoutError, ValueError, IndexError, msgspec.MsgspecError)


async def _post(remote: RemoteKv, path: str, message: dict[str, str]) -> tuple[int, bytes]:
    """Status and body; raises one of `_PEER_FAILURES` for a holder that is not there or does not speak HTTP."""
    body = msgspec.json.encode(message)
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {remote.host}:{remote.port}\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    async with asyncio.timeout(PEER_TIMEOUT_S):
        reader, writer = await asyncio.open_connection(remote.host, remote.port)
        try:
            writer.write(head.encode() + body)
            answer = await reader.read()
        finally:
            writer.close()
    status, _, payload = answer.partition(b"\r\n\r\n")
    return int(status.split(b" ", 2)[1]), payload
