"""The whole thing: emulated workers and the gateway as processes, and a client that holds them to their word."""

import itertools
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway.telemetry.decisions import read_decision_log
from loadtest.client.sse import SseSplitter
from loadtest.fleet.fleet import DEFAULT_MODEL, FleetSpec, RunningFleet, running_fleet
from loadtest.fleet.pools import parse_pools

pytestmark = pytest.mark.e2e

PATIENCE_S = 20.0
PROMPT = "the quick brown fox jumps over the lazy dog " * 20
ROUTES = ("chat/completions", "completions")


class Fleet:
    """A running fleet, a client, and the client's own books."""

    def __init__(self, running: RunningFleet, log: Path, client: httpx.Client) -> None:
        self.running = running
        self.log = log
        self.client = client
        self.asked: Counter[str] = Counter()
        self.tokens: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._ids = itertools.count(1)

    def worker_url(self, name: str) -> str:
        (url,) = [worker["url"] for worker in self.running.workers if worker["name"] == name]
        return str(url)

    def new_id(self) -> str:
        return f"e2e-{next(self._ids)}"

    def count(self, outcome: str, usage: dict[str, Any] | None = None) -> None:
        with self._lock:
            self.asked[outcome] += 1
            if usage is not None:
                self.tokens.update(input=usage["prompt_tokens"], output=usage["completion_tokens"])

    def ask(self, route: str, *, outcome: str = "ok", **fields: Any) -> httpx.Response:
        """A request that is not streamed, through the gateway."""
        headers = {"x-request-id": self.new_id()}
        response = self.client.post(f"{self.running.openai_url}/{route}", json=body(route, **fields), headers=headers)
        self.count(outcome, response.json().get("usage"))
        return response

    def stream(self, route: str, **fields: Any) -> tuple[httpx.Headers, list[dict[str, Any]]]:
        """A streamed request, through the gateway: the head and all events before `[DONE]`."""
        asked = body(route, stream=True, stream_options={"include_usage": True}, **fields)
        headers = {"x-request-id": self.new_id()}
        with self.client.stream("POST", f"{self.running.openai_url}/{route}", json=asked, headers=headers) as response:
            assert response.status_code == 200
            events = read_events(response)
        self.count("ok", events[-1]["usage"])
        return response.headers, events

    def metric(self, name: str, *, url: str | None = None, **labels: str) -> float:
        """The sum of the samples with these labels, of the gateway or of another process."""
        text = self.client.get(f"{url or self.running.url}/metrics").text
        return sum(
            sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    log = tmp_path_factory.mktemp("fleet") / "decisions.jsonl"
    spec = FleetSpec(
        pools=parse_pools("2P2D"),
        engine="h100-llama8b",
        speed=20.0,
        settings={"routing": {"policy": "remote"}, "telemetry": {"decision_log": str(log)}},
    )
    with running_fleet(spec) as running, httpx.Client(timeout=PATIENCE_S, trust_env=False) as client:
        yield Fleet(running, log, client)


def body(route: str, *, prompt: str = PROMPT, **fields: Any) -> dict[str, Any]:
    prompts = {"messages": [{"role": "user", "content": prompt}]} if route.startswith("chat") else {"prompt": prompt}
    return {"model": DEFAULT_MODEL, "max_tokens": 12, "ignore_eos": True, **prompts, **fields}


def read_events(response: httpx.Response) -> list[dict[str, Any]]:
    splitter = SseSplitter()
    events = [event for piece in response.iter_bytes() for event in splitter.feed(piece)]
    assert events.pop() == b"[DONE]"
    return [json.loads(event) for event in events]


def text_of(choice: dict[str, Any]) -> str:
    """The text of a choice, whole or streamed, of either route."""
    if "text" in choice:
        return str(choice["text"])
    return str((choice.get("message") or choice["delta"]).get("content") or "")


def until(condition: Callable[[], object], *, what: str) -> None:
    """Ask again until it holds."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s, f"still not so after {PATIENCE_S:g} s: {what}"
        time.sleep(0.02)


@pytest.mark.parametrize("route", ROUTES)
def test_a_whole_answer_is_the_decode_workers_own(fleet: Fleet, route: str) -> None:
    through = fleet.ask(route, seed=7)
    assert through.status_code == 200
    assert through.headers["x-tidegate-path"] == "remote"
    worker = through.headers["x-tidegate-worker"]
    assert worker in {"decode-0", "decode-1"}
    direct = fleet.client.post(f"{fleet.worker_url(worker)}/v1/{route}", json=body(route, seed=7)).json()
    answer = through.json()
    assert [text_of(choice) for choice in answer["choices"]] == [text_of(choice) for choice in direct["choices"]]
    assert text_of(answer["choices"][0])
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == direct["usage"]["completion_tokens"] == 12
    assert answer["usage"]["prompt_tokens"] == direct["usage"]["prompt_tokens"]


@pytest.mark.parametrize("route", ROUTES)
def test_a_stream_says_the_same_as_a_whole_answer(fleet: Fleet, route: str) -> None:
    headers, events = fleet.stream(route, seed=11)
    whole = fleet.ask(route, seed=11).json()
    assert headers["content-type"].startswith("text/event-stream")
    assert headers["x-tidegate-path"] == "remote"
    streamed = "".join(text_of(choice) for event in events for choice in event["choices"])
    assert streamed == text_of(whole["choices"][0])
    assert events[-1]["choices"] == []
    for count in ("prompt_tokens", "completion_tokens"):
        assert events[-1]["usage"][count] == whole["usage"][count]


@pytest.mark.parametrize("route", ROUTES)
def test_the_decode_worker_computes_no_prompt_that_was_prefilled_elsewhere(fleet: Fleet, route: str) -> None:
    labels = {"source": "local_compute"}
    urls = [fleet.worker_url(f"decode-{number}") for number in range(2)]
    before = sum(fleet.metric("vllm:prompt_tokens_by_source_total", url=url, **labels) for url in urls)
    fleet.ask(route, prompt=f"only {route} " * 300)
    after = sum(fleet.metric("vllm:prompt_tokens_by_source_total", url=url, **labels) for url in urls)
    assert after - before < 64  # a block at most


def test_the_answer_carries_the_clients_id_and_the_decisions(fleet: Fleet) -> None:
    headers = {"x-request-id": "my-own-id", "x-slo-ttft-ms": "1500"}
    url = f"{fleet.running.openai_url}/chat/completions"
    response = fleet.client.post(url, json=body("chat"), headers=headers)
    fleet.count("ok", response.json()["usage"])
    assert response.headers["x-request-id"] == "my-own-id"
    assert response.headers["x-tidegate-policy"] == "remote"
    assert response.headers["x-tidegate-decision-id"]
    assert response.headers.get_list("content-length") == [str(len(response.content))]


def test_a_workers_refusal_passes_as_it_is(fleet: Fleet) -> None:
    wrong: dict[str, Any] = {"temperature": -1}
    through = fleet.ask("chat/completions", outcome="client_error", **wrong)
    direct = fleet.client.post(
        f"{fleet.worker_url('decode-0')}/v1/chat/completions", json=body("chat/completions", **wrong)
    )
    assert (through.status_code, through.content) == (direct.status_code, direct.content)
    assert through.status_code == 400


def test_the_gateways_own_refusals_have_openais_shape(fleet: Fleet) -> None:
    unknown = fleet.ask("chat/completions", outcome="refused", model="nobody")
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")
    unread = fleet.client.post(f"{fleet.running.openai_url}/completions", content=b"{bad")
    fleet.count("client_error")
    assert (unread.status_code, unread.json()["error"]["type"]) == (400, "invalid_request_error")
    assert fleet.client.get(f"{fleet.running.openai_url}/completions").status_code == 405


def test_the_models_are_the_workers(fleet: Fleet) -> None:
    (card,) = fleet.client.get(f"{fleet.running.openai_url}/models").json()["data"]
    assert card["id"] == DEFAULT_MODEL
    assert card["max_model_len"] > 0


def test_many_at_once_are_all_answered(fleet: Fleet) -> None:
    def one(number: int) -> str:
        route = ROUTES[number % 2]
        if number % 4 < 2:
            _, events = fleet.stream(route, prompt=f"{number} {PROMPT}")
            return "".join(text_of(choice) for event in events for choice in event["choices"])
        return text_of(fleet.ask(route, prompt=f"{number} {PROMPT}").json()["choices"][0])

    with ThreadPoolExecutor(8) as pool:
        texts = list(pool.map(one, range(32)))
    assert all(len(text) == 12 * 4 for text in texts)


def test_a_client_that_leaves_frees_the_workers_and_the_gateway(fleet: Fleet) -> None:
    for number in range(3):
        asked = body("chat/completions", stream=True, max_tokens=100_000, prompt=f"{number} {PROMPT}")
        with fleet.client.stream("POST", f"{fleet.running.openai_url}/chat/completions", json=asked) as response:
            next(response.iter_bytes())
        fleet.count("cancelled")

    def all_free() -> bool:
        running = [
            fleet.metric("vllm:num_requests_running", url=worker["url"])
            + fleet.metric("vllm:num_requests_waiting", url=worker["url"])
            for worker in fleet.running.workers
        ]
        return sum(running) == 0

    until(all_free, what="no worker runs anything")
    until(lambda: fleet.metric("tidegate_inflight_requests") == 0, what="nothing is in flight")
    assert fleet.metric("tidegate_worker_inflight_requests") == 0
    assert fleet.metric("tidegate_worker_inflight_tokens") == 0
    assert fleet.metric("tidegate_requests_total", outcome="cancelled") == fleet.asked["cancelled"]


def test_what_the_gateway_counted_is_what_its_client_saw(fleet: Fleet) -> None:
    """Of these requests and of all that other tests made before."""
    for route in ROUTES:
        fleet.ask(route)
        fleet.stream(route)
    total = fleet.asked.total()
    until(lambda: fleet.metric("tidegate_requests_total") == total, what=f"{total} requests counted")
    for outcome, asked in fleet.asked.items():
        assert fleet.metric("tidegate_requests_total", outcome=outcome) == asked, outcome
    for kind, tokens in fleet.tokens.items():
        assert fleet.metric("tidegate_tokens_total", type=kind) == tokens
    until(lambda: fleet.metric("tidegate_decision_log_records_total") == total, what="all records written")
    records = list(read_decision_log(fleet.log))
    assert len(records) == total
    assert len({record.request_id for record in records}) == total
    assert Counter(record.outcome.kind.value for record in records) == fleet.asked
    assert fleet.metric("tidegate_decision_log_dropped_total") == 0
    assert fleet.metric("tidegate_upstream_errors_total") == 0
    assert {record.decision.path for record in records if record.decision is not None} == {"remote"}
