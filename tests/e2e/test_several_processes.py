"""`tidegate serve --workers 2`: two processes that are one gateway, over real sockets."""

import json
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from gateway.telemetry.decisions import read_decision_log
from loadtest.fleet.processes import first_line, running, wait_until_ready
from tests.e2e.test_processes import free_port

pytestmark = pytest.mark.e2e

PATIENCE_S = 120.0
MODEL, OTHER = "emulated-llm", "other-llm"
MANY = 300
"""Connections: that all of them come to one process of two does not happen."""


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """URLs of three emulated workers by their names; one of them serves a model of its own."""
    models = {"w0": MODEL, "w1": MODEL, "other": OTHER}
    config = [
        {"name": name, "role": "both", "engine": "h100-llama8b", "model": model, "speed": 5.0}
        for name, model in models.items()
    ]
    log = tmp_path_factory.mktemp("workers") / "output"
    with running(["loadtest.worker", "--config-json", json.dumps(config)], log=log, pipe_output=True) as process:
        yield {worker["name"]: worker["url"] for worker in first_line(process, log)["workers"]}


class Served:
    """A gateway of two processes, and its output."""

    def __init__(self, folder: Path, workers: dict[str, str], **server: Any) -> None:
        port, admin_port = free_port(), free_port()
        self.url, self.admin = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{admin_port}"
        self.folder, self.config, self.output = folder, folder / "tidegate.yaml", folder / "output"
        self.tree: dict[str, Any] = {
            "server": {"port": port, "workers": 2, "drain_s": 60.0, **server},
            "admin": {"port": admin_port},
            # What a process knows of the other's requests it has not from the workers.
            "fleet": {"scrape_interval_s": 3600.0, "probe_timeout_s": 30.0},
            "workers": [{"id": name, "url": workers[name]} for name in ("w0", "w1")],
            "routing": {"policy": "local", "decode_weights": {"few_requests": 1.0}},
            "telemetry": {"decision_log": str(folder / "decisions.jsonl")},
        }
        self.put()

    def put(self, **sections: Any) -> None:
        self.tree |= sections
        self.config.write_text(yaml.safe_dump(self.tree))

    def lines(self, event: str) -> list[dict[str, Any]]:
        """The log lines of one event so far."""
        read = [json.loads(line) for line in self.output.read_text().splitlines() if line.startswith("{")]
        return [line for line in read if line.get("event") == event]

    def pids(self) -> dict[int, int]:
        """Of the processes that were started last, by number."""
        return {line["number"]: line["pid"] for line in self.lines("process.started")}

    def serving(self) -> list[int]:
        """The numbers of processes that came to serve, in order."""
        return [line["process"] for line in self.lines("gateway.started")]

    def ask(self, model: str = MODEL) -> httpx.Response:
        """One short request on a connection of its own."""
        body = {"model": model, "prompt": "hello", "max_tokens": 2, "ignore_eos": True}
        return httpx.post(f"{self.url}/v1/completions", json=body, timeout=PATIENCE_S)

    @contextmanager
    def stream(self, max_tokens: int) -> Iterator[tuple[httpx.Response, Iterator[bytes]]]:
        """A stream that has begun."""
        body = {"model": MODEL, "prompt": "hello " * 50, "max_tokens": max_tokens, "ignore_eos": True, "stream": True}
        with httpx.stream("POST", f"{self.url}/v1/completions", json=body, timeout=PATIENCE_S) as response:
            pieces = response.iter_bytes()
            next(pieces)
            yield response, pieces

    def by_both(self, model: str = MODEL) -> list[httpx.Response]:
        """Requests until both processes have answered one; all are answered well."""
        answers: list[httpx.Response] = []
        for _ in range(MANY):
            answers.append(self.ask(model))
            assert answers[-1].status_code == 200, answers[-1].text
            if {process_of(answer) for answer in answers} == {0, 1}:
                return answers
        raise AssertionError("one process answered all requests")

    def metric(self, name: str) -> float:
        """The sum of a metric's lines in one scrape."""
        families = text_string_to_metric_families(httpx.get(f"{self.url}/metrics", timeout=PATIENCE_S).text)
        return sum(sample.value for family in families for sample in family.samples if sample.name == name)


def process_of(answer: httpx.Response) -> int:
    found = re.search(r"p(\d+)-", answer.headers["x-tidegate-decision-id"])
    assert found is not None
    return int(found[1])


@contextmanager
def started(folder: Path, workers: dict[str, str], **server: Any) -> Iterator[tuple[Any, Served]]:
    served = Served(folder, workers, **server)
    with running(["gateway", "serve", "-c", str(served.config)], log=served.output) as process:
        wait_until_ready(process, f"{served.url}/readyz", served.output)
        until(lambda: sorted(served.serving()) == [0, 1])
        yield process, served


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, workers: dict[str, str]) -> Iterator[Served]:
    with started(tmp_path_factory.mktemp("gateway"), workers) as (_, served):
        yield served


def until(condition: Callable[[], object]) -> None:
    """Wait until the condition holds, or give up."""
    end_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end_s, "it never came to that"
        time.sleep(0.02)


def test_both_answer_and_one_scrape_shows_the_sum(served: Served) -> None:
    before = served.metric("tidegate_requests_total")
    answers = served.by_both()
    # A request is counted, and its line written, right after its answer.
    until(lambda: served.metric("tidegate_requests_total") == before + len(answers))
    assert served.metric("tidegate_processes") == 2
    until(lambda: {line["process"] for line in served.lines("request.finished")} == {0, 1})


def test_a_decision_is_found_whoever_made_it_and_the_newest_are_of_both(served: Served) -> None:
    answers = served.by_both()[-2:]
    ids = [answer.headers["x-tidegate-decision-id"] for answer in answers]
    for decision_id in ids:
        assert httpx.get(f"{served.admin}/decisions/{decision_id}").json()["decision"]["decision_id"] == decision_id
    assert httpx.get(f"{served.admin}/decisions/none").status_code == 404
    newest = httpx.get(f"{served.admin}/decisions?limit=2").json()["data"]
    assert [record["decision"]["decision_id"] for record in newest] == ids[::-1]


def test_what_one_has_in_flight_the_other_knows(served: Served) -> None:
    assert seen_by(served, 1) == [1.0, 1.0]
    with held_by(served, 0):
        until(lambda: min(seen_by(served, 1)) < 1.0)
        inflight = [worker["inflight_requests"] for worker in httpx.get(f"{served.admin}/workers").json()]
        assert sum(inflight) == 1
        assert served.metric("tidegate_worker_inflight_requests") == 1
    until(lambda: seen_by(served, 1) == [1.0, 1.0])
    until(lambda: served.metric("tidegate_shared_replicas") == 2)


@contextmanager
def held_by(served: Served, number: int) -> Iterator[None]:
    """A stream that goes on, by the process of this number."""
    for _ in range(MANY):
        with served.stream(100_000) as (response, _):
            if process_of(response) == number:
                yield
                return
    raise AssertionError("the other process answered all requests")


def seen_by(served: Served, number: int) -> list[float]:
    """How a process scores both workers by what is in flight there."""
    for _ in range(MANY):
        answer = served.ask()
        if process_of(answer) == number:
            break
    record = httpx.get(f"{served.admin}/decisions/{answer.headers['x-tidegate-decision-id']}").json()
    return [dict(worker["scores"])["few_requests"] for worker in record["decision"]["decode_candidates"]]


def test_a_worker_that_an_operator_adds_is_known_to_both_and_to_one_that_is_started_again(
    served: Served, workers: dict[str, str]
) -> None:
    added = httpx.post(f"{served.admin}/workers", json={"id": "other", "url": workers["other"]}, timeout=PATIENCE_S)
    assert (added.status_code, added.json()["id"]) == (201, "other")
    again = httpx.post(f"{served.admin}/workers", json={"id": "other", "url": workers["other"]}, timeout=PATIENCE_S)
    assert again.status_code == 409
    until(lambda: served.ask(OTHER).status_code == 200)
    served.by_both(OTHER)

    counted = served.metric("tidegate_requests_total")
    killed = served.pids()[1]
    os.kill(killed, signal.SIGKILL)
    until(lambda: served.lines("process.died"))
    until(lambda: served.pids()[1] != killed and served.serving().count(1) == 2)
    until(lambda: served.metric("tidegate_processes") == 2)
    assert served.metric("tidegate_process_restarts_total") == 1
    assert served.metric("tidegate_requests_total") >= counted
    # Its first look at the worker takes a moment.
    until(lambda: (answer := served.ask(OTHER)).status_code == 200 and process_of(answer) == 1)
    served.by_both(OTHER)
    assert [line["number"] for line in served.lines("process.died")] == [1]


def test_a_reload_by_the_admin_application_reaches_both(served: Served) -> None:
    served.put(aliases={"gpt": MODEL})
    response = httpx.post(f"{served.admin}/settings/reload", timeout=PATIENCE_S)
    assert response.json()["changed"] == ["aliases.gpt"]
    served.by_both("gpt")
    assert sorted(line["process"] for line in served.lines("settings.reloaded")) == [0, 1]


def test_sigterm_drains_both_and_a_bad_reload_changes_neither(tmp_path: Path, workers: dict[str, str]) -> None:
    with started(tmp_path, workers) as (process, served), ExitStack() as stack:
        served.put(aliases={"gpt": MODEL})
        process.send_signal(signal.SIGHUP)
        until(lambda: len(served.lines("settings.reloaded")) == 2)
        served.put(routing={"policy": "magic"})
        process.send_signal(signal.SIGHUP)
        until(lambda: len(served.lines("settings.refused")) == 2)
        served.by_both("gpt")

        streams = [stack.enter_context(served.stream(1500))]
        while len({process_of(response) for response, _ in streams}) < 2:
            streams.append(stack.enter_context(served.stream(1500)))
        process.send_signal(signal.SIGTERM)
        for _, pieces in streams:
            assert b"".join(pieces).endswith(b"data: [DONE]\n\n")
        assert process.wait(PATIENCE_S) == 0
        assert sorted(line["process"] for line in served.lines("gateway.draining")) == [0, 1]
        for number in (0, 1):
            records = [*read_decision_log(tmp_path / f"decisions-{number}.jsonl")]
            assert {record.outcome.kind for record in records} == {"ok"}
        assert not any(alive(pid) for pid in served.pids().values())


def test_a_second_signal_ends_both_at_once_and_the_stream_is_recorded(tmp_path: Path, workers: dict[str, str]) -> None:
    with started(tmp_path, workers, drain_delay_s=60.0) as (process, served), served.stream(100_000) as (held, pieces):
        process.send_signal(signal.SIGINT)
        until(lambda: len(served.lines("gateway.draining")) == 2)
        process.send_signal(signal.SIGINT)
        with pytest.raises(httpx.RemoteProtocolError):
            b"".join(pieces)
        assert process.wait(PATIENCE_S) == 0
    (record,) = read_decision_log(tmp_path / f"decisions-{process_of(held)}.jsonl")
    assert record.outcome.kind == "cancelled"


def test_processes_end_with_a_parent_that_is_killed(tmp_path: Path, workers: dict[str, str]) -> None:
    with started(tmp_path, workers) as (process, served):
        process.kill()
        process.wait(PATIENCE_S)
        until(lambda: not any(alive(pid) for pid in served.pids().values()))


def test_a_port_that_is_taken_is_said_once_and_no_process_is_started(tmp_path: Path, workers: dict[str, str]) -> None:
    served = Served(tmp_path, workers)
    served.put(server={"port": int(workers["w0"].rpartition(":")[2]), "workers": 2})
    with running(["gateway", "serve", "-c", str(served.config)], log=served.output) as process:
        assert process.wait(PATIENCE_S) == 2
    (line,) = served.output.read_text().splitlines()
    assert line.startswith("error: [Errno 98]")


def test_what_no_process_can_start_with_is_said_once(tmp_path: Path, workers: dict[str, str]) -> None:
    served = Served(tmp_path, workers)
    served.put(telemetry={"journal": str(tmp_path / "no" / "journal")})
    with running(["gateway", "serve", "-c", str(served.config)], log=served.output) as process:
        assert process.wait(PATIENCE_S) == 1
    lines = served.output.read_text().splitlines()
    assert [line for line in lines if line.startswith("error: ")] == [
        f"error: [Errno 2] No such file or directory: '{tmp_path / 'no' / 'journal-0'}'"
    ]
    assert [line["number"] for line in served.lines("processes.given_up")] == [0]


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
