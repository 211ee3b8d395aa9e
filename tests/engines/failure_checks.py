"""A worker dies under load and comes back, and the gateway is never restarted.

The rule of this module: every request ends, with the right text or with an error that says so. What is right is asked
of the engine itself afterwards.
"""

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.engines.checklist import same
from tests.engines.engine_client import CHAT, COMPLETIONS, Reply, prompt_fields, story, until
from tests.engines.engine_pair import Worker
from tests.engines.pair_lab import LOGPROB_TOLERANCE, SAMPLED, WITH_LOGPROBS, Lab, logprob_distance
from tests.engines.work_checks import remote_load

CLIENTS = 4
BEFORE_KILL_REQUESTS = 8
AFTER_DOWN_REQUESTS = 8
RECOVERY_PATIENCE_S = 180.0
HANG_S = 200.0
"""Below a client's patience: the gateway's own idle limit, a first byte limit apart, is 120 s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One request of the load and its end."""

    route: str
    fields: dict[str, Any]
    began_s: float
    reply: Reply

    @property
    def ended_s(self) -> float:
        """On the clock of `began_s`."""
        return self.began_s + self.reply.duration_s


@dataclass(slots=True)
class Load:
    """Clients that ask one request after the other, streams and whole ones of both routes."""

    lab: Lab
    output_tokens: int
    asked: list[Asked] = field(default_factory=list)
    _ending: threading.Event = field(default_factory=threading.Event)

    def wait_for(self, count: int) -> None:
        """Until so many more requests have ended."""
        target = len(self.asked) + count
        until(lambda: len(self.asked) >= target, f"{count} more requests ended", patience_s=RECOVERY_PATIENCE_S)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Clients at work; at the end their last requests are waited for."""
        clients = [threading.Thread(target=self._client, args=(number,)) for number in range(CLIENTS)]
        for client in clients:
            client.start()
        try:
            yield
        finally:
            self._ending.set()
            for client in clients:
                client.join()

    def _client(self, number: int) -> None:
        route = (CHAT, COMPLETIONS)[number % 2]
        usage = {"stream_options": {"include_usage": True}}
        while not self._ending.is_set():
            fields = {
                **prompt_fields(route, story()),
                **SAMPLED,
                **WITH_LOGPROBS[route],
                "max_tokens": self.output_tokens,
            }
            began_s = time.monotonic()
            sent = {**fields, "stream": True, **usage} if number < CLIENTS / 2 else fields
            reply = self.lab.gateway.ask(route, sent)
            self.asked.append(Asked(route=route, fields=fields, began_s=began_s, reply=reply))
            if not reply.is_whole:
                time.sleep(0.25)


def prefill_worker_dies(lab: Lab) -> str:
    """P is killed under load: every answer is right (D prefills itself) or an honest error, none hangs"""
    asked, killed_s = _kill_under_load(lab, lab.pair.prefill, output_tokens=48)
    late = [one for one in asked if one.began_s > killed_s]
    assert any(one.reply.is_whole and one.reply.path == "local" for one in late), "no request fell back to local"
    return _judge(lab, asked, killed_s)


def prefill_worker_is_missed(lab: Lab) -> str:
    """While P is down, D answers everything locally and right"""
    for route in (CHAT, COMPLETIONS):
        fields = {**prompt_fields(route, story()), **SAMPLED}
        same(lab.ask(route, fields, path="local").text, lab.reference(route, fields).text, "text")
    return f"breaker state of P: {lab.gateway.metric('tidegate_worker_breaker_state', worker='P'):.0f}"


def decode_worker_dies(lab: Lab) -> str:
    """D is killed under load: 502, 503 or an error event in the stream, none hangs"""
    asked, killed_s = _kill_under_load(lab, lab.pair.decode, output_tokens=600)
    assert any(one.reply.is_stream and one.reply.error for one in asked), "no stream was under way at the kill"
    refused = [one.reply for one in asked if one.reply.status == 503]
    assert refused, "no request was refused with 503 once the gateway knew"
    assert all("retry-after" in reply.headers for reply in refused), "a 503 without Retry-After"
    return _judge(lab, asked, killed_s, texts=False)


def decode_worker_is_missed(lab: Lab) -> str:
    """While D is down, requests are refused at once with 503, and /readyz says so"""
    reply = lab.gateway.ask(CHAT, prompt_fields(CHAT, story()))
    same(reply.status, 503, "status")
    assert reply.is_honest_error, reply.body[:300]
    ready = lab.gateway.client.get(f"{lab.gateway.url}/readyz")
    same(ready.status_code, 503, "status of /readyz")
    return f"{reply.body.decode()}"


def comes_back(lab: Lab, worker: Worker) -> str:
    """The worker starts again and the gateway uses the remote path by itself"""
    began_s = time.monotonic()
    worker.start_again()
    healthy_s = time.monotonic()
    until(lambda: _is_remote_again(lab), "a request takes the remote path", patience_s=RECOVERY_PATIENCE_S)
    used_s = time.monotonic()
    # A worker that comes back is on trial: requests, and not probes, close its breaker.
    until(
        lambda: _is_remote_again(lab) and _breaker(lab, worker) == 0,
        f"the breaker of {worker.name} is closed",
        patience_s=RECOVERY_PATIENCE_S,
    )
    remark = remote_load(lab)
    return f"healthy after {healthy_s - began_s:.0f} s, remote {used_s - healthy_s:.1f} s later; {remark}"


def _kill_under_load(lab: Lab, worker: Worker, *, output_tokens: int) -> tuple[list[Asked], float]:
    """The load's requests and when the worker was killed; the load goes on until the gateway knows, and after."""
    load = Load(lab, output_tokens)
    with load.running():
        load.wait_for(BEFORE_KILL_REQUESTS)
        if worker is lab.pair.decode:
            until(lambda: lab.count(worker, "vllm:num_requests_running") >= CLIENTS // 2, "half of the load is at D")
        killed_s = time.monotonic()
        worker.kill()
        until(lambda: _breaker(lab, worker) == 3, f"{worker.name} is known to be down", patience_s=60.0)
        load.wait_for(AFTER_DOWN_REQUESTS)
    return load.asked, killed_s


def _judge(lab: Lab, asked: list[Asked], killed_s: float, *, texts: bool = True) -> str:
    for one in asked:
        reply = one.reply
        what = f"{reply.status} {reply.broken} {reply.body[-300:]!r} after {reply.duration_s:.1f} s"
        assert reply.duration_s < HANG_S, f"a request hung: {what}"
        assert reply.is_whole or reply.is_honest_error, f"neither an answer nor an honest error: {what}"
        if texts and reply.is_whole:
            _must_be_right(lab, one)
    across = [one for one in asked if one.began_s < killed_s < one.ended_s]
    assert across, "nothing was in flight at the kill"
    ends = Counter(_end_of(one.reply) for one in asked)
    slowest_s = max(one.reply.duration_s for one in asked)
    return (
        f"{len(asked)} requests: {dict(ends)}; in flight at the kill: "
        f"{dict(Counter(_end_of(one.reply) for one in across))}; slowest {slowest_s:.1f} s"
    )


def _must_be_right(lab: Lab, one: Asked) -> None:
    expected = lab.reference(one.route, one.fields)
    same(one.reply.text, expected.text, f"text by path {one.reply.path}")
    distance = logprob_distance(one.reply, expected)
    assert distance < LOGPROB_TOLERANCE, f"logprobs by path {one.reply.path} are off by {distance:.2g}"


def _end_of(reply: Reply) -> str:
    if reply.is_whole:
        return f"200 {reply.path}"
    return "error event" if reply.is_stream else str(reply.status or reply.broken)


def _is_remote_again(lab: Lab) -> bool:
    return lab.gateway.ask(CHAT, prompt_fields(CHAT, story())).path == "remote"


def _breaker(lab: Lab, worker: Worker) -> float:
    return lab.gateway.metric("tidegate_worker_breaker_state", worker=worker.name)
