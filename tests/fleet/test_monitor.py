"""Watching workers that are well, slow, broken or hostile."""

import asyncio

import httpx
import pytest
from structlog.testing import capture_logs

from gateway.core.events import WorkerDown, WorkerProbed, WorkerSampled, WorkerUp
from gateway.core.types import WorkerId
from gateway.fleet.monitor import MAX_PAGE_BYTES, MODELS_EVERY_PROBES
from tests.api.asgi_client import settle
from tests.fleet.fleet_lab import METRICS, Answer, FakeWorker, Pieces, Watch, cards, hang, member, page

A, B = WorkerId("a"), WorkerId("b")
LATE = WorkerProbed(at_s=42.0, worker_id=A, healthy=False, timed_out=True)
NONSENSE = [
    pytest.param(page(b""), id="nothing"),
    pytest.param(page(b"{"), id="cut short"),
    pytest.param(page(b"[]"), id="a list"),
    pytest.param(page(b'{"data": 5}'), id="no list"),
    pytest.param(page(b'{"object": "error"}'), id="no data"),
    pytest.param(page(b"[" * 100_000), id="deep"),
    pytest.param(page(b'{"data":[{"id":"m","created":1e999}]}'), id="infinite"),
    pytest.param(page(b'{"data":[{"id":"\\ud83d"}]}'), id="half a surrogate pair"),
    pytest.param(page(b"\xff\xfe"), id="no text"),
    pytest.param(httpx.Response(500, content=b'{"data":[{"id":"m"}]}'), id="500"),
    pytest.param(httpx.Response(302, headers={"location": "http://elsewhere/"}), id="redirect"),
    pytest.param(httpx.ConnectError("refused"), id="refused"),
    pytest.param(httpx.RemoteProtocolError("junk"), id="no http"),
    pytest.param(httpx.ReadError("reset"), id="reset"),
]


async def test_a_first_look_says_all_there_is_to_say() -> None:
    async with Watch({"a": FakeWorker("llama")}) as watch:
        await watch.monitor.look(A)
        probed, up, sampled = watch.observed.events
        assert probed == WorkerProbed(at_s=42.0, worker_id=A, healthy=True)
        assert isinstance(up, WorkerUp)
        assert up.spec.models == ("llama",)
        assert isinstance(sampled, WorkerSampled)
        assert (sampled.sample.running, sampled.sample.waiting, sampled.sample.kv_used_ratio) == (3, 1, 0.5)
        assert watch.workers["a"].asked == ["/health", "/v1/models", "/metrics"]


async def test_an_unhealthy_worker_is_asked_nothing_more() -> None:
    worker = FakeWorker("llama")
    worker.answers["/health"] = httpx.Response(503)
    async with Watch({"a": worker}) as watch:
        await watch.monitor.look(A)
        assert watch.observed.events == [WorkerProbed(at_s=42.0, worker_id=A, healthy=False)]
        assert worker.asked == ["/health"]


async def test_a_path_in_a_workers_url_is_kept() -> None:
    worker = FakeWorker()
    worker.answers["/base/health"] = httpx.Response(200)
    async with Watch({"a": worker}, base_path="/base/") as watch:
        await watch.monitor.probe(A)
        assert worker.asked == ["/base/health"]


@pytest.mark.parametrize("answer", NONSENSE)
async def test_a_model_list_that_is_none_is_no_list(answer: Answer) -> None:
    worker = FakeWorker()
    worker.answers["/v1/models"] = answer
    async with Watch({"a": worker}) as watch:
        await watch.monitor.read_models(A)
        assert watch.observed.events == []
        assert watch.registry.model_cards({}) == []


async def test_cards_that_are_none_are_left_out() -> None:
    worker = FakeWorker()
    worker.answers["/v1/models"] = page(b'{"data":[1, null, {}, {"id":3}, {"id":"llama"}]}')
    async with Watch({"a": worker}) as watch:
        await watch.monitor.read_models(A)
        (up,) = watch.observed.of(WorkerUp, "a")
        assert up.spec.models == ("llama",)


@pytest.mark.parametrize("answer", [answer for answer in NONSENSE if answer.id in {"500", "refused", "reset"}])
async def test_a_scrape_that_fails_is_no_sample(answer: Answer) -> None:
    worker = FakeWorker()
    worker.answers["/metrics"] = answer
    async with Watch({"a": worker}) as watch:
        await watch.monitor.scrape(A)
        assert watch.observed.events == []


async def test_a_page_without_the_known_metrics_is_a_sample_that_knows_nothing() -> None:
    worker = FakeWorker()
    worker.answers["/metrics"] = page(b"\xff\x00 junk\n")
    async with Watch({"a": worker}) as watch:
        await watch.monitor.scrape(A)
        (sampled,) = watch.observed.of(WorkerSampled, "a")
        assert sampled.sample.running is None


@pytest.mark.parametrize(("extra_bytes", "samples"), [(0, 1), (1, 0)])
async def test_a_page_over_the_bound_is_no_sample(extra_bytes: int, samples: int) -> None:
    worker = FakeWorker()
    filler = b"# " + b"x" * (MAX_PAGE_BYTES - len(METRICS) - 3 + extra_bytes) + b"\n"
    worker.answers["/metrics"] = page(filler + METRICS)
    async with Watch({"a": worker}) as watch:
        await watch.monitor.scrape(A)
        assert len(watch.observed.of(WorkerSampled, "a")) == samples


@pytest.mark.parametrize("path", ["/health", "/v1/models", "/metrics"])
async def test_a_page_without_end_is_read_no_further_than_the_bound(path: str) -> None:
    worker, endless = FakeWorker(), Pieces(b"x" * 2**20)
    worker.answers[path] = httpx.Response(200, stream=endless)
    async with Watch({"a": worker}) as watch:
        await watch.monitor.look(A)
        assert endless.read == MAX_PAGE_BYTES // 2**20 + 1


@pytest.mark.parametrize(
    ("answer", "timed_out"),
    [
        (httpx.ConnectError("refused"), False),
        (httpx.ReadError("reset"), False),
        (httpx.Response(500), False),
        (httpx.ConnectTimeout("no answer"), True),
        (httpx.ReadTimeout("no answer"), True),
    ],
    ids=["refused", "reset", "500", "connect timeout", "read timeout"],
)
async def test_a_probe_that_is_refused_is_told_from_one_that_is_late(answer: Answer, timed_out: bool) -> None:
    worker = FakeWorker("llama")
    worker.answers["/health"] = answer
    async with Watch({"a": worker}) as watch:
        await watch.monitor.probe(A)
        (probed,) = watch.observed.of(WorkerProbed, "a")
        assert (probed.healthy, probed.timed_out) == (False, timed_out)


async def test_a_worker_without_a_health_page_is_well_where_it_lists_its_models() -> None:
    worker = FakeWorker("gguf")
    worker.answers["/health"] = httpx.Response(404)
    async with Watch({"a": worker}) as watch:
        await watch.monitor.look(A)
        assert watch.observed.events[0] == WorkerProbed(at_s=42.0, worker_id=A, healthy=True)
        assert watch.observed.of(WorkerUp, "a")[0].spec.models == ("gguf",)
        assert worker.asked == ["/health", "/v1/models", "/v1/models", "/metrics"]


@pytest.mark.parametrize("answer", [httpx.Response(404), httpx.Response(503), httpx.ConnectError("refused")])
async def test_a_worker_without_a_health_page_and_without_models_is_not_well(answer: Answer) -> None:
    worker = FakeWorker()
    worker.answers |= {"/health": httpx.Response(404), "/v1/models": answer}
    async with Watch({"a": worker}) as watch:
        await watch.monitor.look(A)
        assert watch.observed.events == [WorkerProbed(at_s=42.0, worker_id=A, healthy=False)]


async def test_a_page_that_drips_runs_out_of_time() -> None:
    worker = FakeWorker()
    worker.answers["/health"] = httpx.Response(200, stream=Pieces(b"x"))
    async with Watch({"a": worker}, timeout_s=0.02) as watch:
        await watch.monitor.probe(A)
        assert watch.observed.events == [LATE]


async def test_a_worker_that_hangs_delays_no_other_and_only_itself_is_unhealthy() -> None:
    hanging, well = FakeWorker("llama"), FakeWorker("llama")
    hanging.answers["/health"] = hang
    async with Watch({"a": hanging, "b": well}, timeout_s=0.02) as watch:
        await watch.monitor.start()
        first = watch.observed.events.index(LATE)
        of_b = [event for event in watch.observed.events[:first] if event in watch.observed.of(WorkerUp, "b")]
        assert len(of_b) == 1
        await watch.observed.until(lambda: len(watch.observed.of(WorkerSampled, "b")) > 5)
        assert watch.observed.of(WorkerUp, "a") == []


async def test_configured_models_are_announced_before_anything_is_asked() -> None:
    worker = FakeWorker("llama")
    worker.answers["/health"] = httpx.ConnectError("refused")
    async with Watch({"a": worker}, models=("llama",)) as watch:
        await watch.monitor.start()
        assert isinstance(watch.observed.events[0], WorkerUp)
        assert watch.observed.events[1] == WorkerProbed(at_s=42.0, worker_id=A, healthy=False)


async def test_a_change_of_models_is_announced_and_an_equal_list_is_not() -> None:
    worker = FakeWorker("llama")
    async with Watch({"a": worker}) as watch:
        await watch.monitor.read_models(A)
        await watch.monitor.read_models(A)
        worker.answers["/v1/models"] = cards("llama", "adapter")
        await watch.monitor.read_models(A)
        worker.answers["/v1/models"] = cards()
        await watch.monitor.read_models(A)
        told = [up.spec.models for up in watch.observed.of(WorkerUp, "a")]
        assert told == [("llama",), ("llama", "adapter"), ()]


async def test_models_are_read_again_every_so_many_probes() -> None:
    worker = FakeWorker("llama")
    async with Watch({"a": worker}) as watch:
        await watch.monitor.start()
        worker.answers["/v1/models"] = cards("llama", "adapter")
        await watch.observed.until(lambda: len(watch.observed.of(WorkerUp, "a")) == 2)
        assert len(watch.observed.of(WorkerProbed, "a")) >= MODELS_EVERY_PROBES
        assert worker.asked.count("/v1/models") == 2


async def test_a_worker_that_comes_back_is_asked_for_its_models_at_once() -> None:
    worker = FakeWorker("old")
    async with Watch({"a": worker}) as watch:
        await watch.monitor.start()
        worker.answers["/health"] = httpx.ConnectError("restarting")
        await watch.observed.until(lambda: not watch.observed.of(WorkerProbed, "a")[-1].healthy)
        worker.answers["/v1/models"] = cards("new")
        worker.answers["/health"] = httpx.Response(200)
        await watch.observed.until(lambda: watch.observed.of(WorkerUp, "a")[-1].spec.models == ("new",))
        last_failure = max(
            number
            for number, event in enumerate(watch.observed.events)
            if isinstance(event, WorkerProbed) and not event.healthy
        )
        since = watch.observed.events[last_failure:]
        assert sum(isinstance(event, WorkerProbed) and event.healthy for event in since) == 1


async def test_a_worker_that_is_down_is_asked_for_its_health_alone() -> None:
    worker = FakeWorker("llama")
    worker.answers["/health"] = httpx.ConnectError("refused")
    worker.answers["/metrics"] = httpx.ConnectError("refused")
    async with Watch({"a": worker}) as watch:
        await watch.monitor.start()
        await watch.observed.until(lambda: len(watch.observed.of(WorkerProbed, "a")) > MODELS_EVERY_PROBES)
        assert "/v1/models" not in worker.asked


async def test_a_worker_whose_models_are_not_known_yet_is_asked_at_every_probe() -> None:
    worker = FakeWorker()
    worker.answers["/v1/models"] = httpx.Response(500)
    async with Watch({"a": worker}) as watch:
        await watch.monitor.start()
        worker.answers["/v1/models"] = cards("llama")
        await watch.observed.until(lambda: watch.observed.of(WorkerUp, "a"))
        assert len(watch.observed.of(WorkerProbed, "a")) < MODELS_EVERY_PROBES


@pytest.mark.parametrize("answer", NONSENSE)
async def test_no_answer_ends_the_watch(answer: Answer) -> None:
    worker = FakeWorker()
    good = dict(worker.answers)
    async with Watch({"a": worker}) as watch:
        for path in worker.answers:
            worker.answers[path] = answer
        await watch.monitor.start()
        asked = len(worker.asked)
        await watch.observed.until(lambda: len(worker.asked) > asked + 2 * MODELS_EVERY_PROBES)
        worker.answers |= good
        worker.answers["/v1/models"] = cards("llama")
        await watch.observed.until(
            lambda: (
                watch.observed.of(WorkerUp, "a")
                and watch.observed.of(WorkerSampled, "a")
                and watch.observed.of(WorkerProbed, "a")[-1].healthy
            )
        )


async def test_time_passes_for_the_core_and_for_who_else_wants_to_know() -> None:
    async with Watch({}) as watch:
        await watch.monitor.start()
        await watch.observed.until(lambda: watch.observed.ticks)
        assert watch.observed.ticks[0] == 42.0
        await watch.observed.until(lambda: watch.passed)


async def test_a_stopped_watch_asks_nothing_more() -> None:
    worker = FakeWorker("llama")
    async with Watch({"a": worker}) as watch:
        await watch.monitor.start()
        await watch.observed.until(lambda: len(watch.observed.of(WorkerProbed, "a")) > 2)
        await watch.monitor.stop()
        await settle(lambda: asyncio.all_tasks() == {asyncio.current_task()})


async def test_only_a_change_of_health_is_logged() -> None:
    worker = FakeWorker("llama")
    with capture_logs() as logs:
        async with Watch({"a": worker}) as watch:
            await watch.monitor.probe(A)
            await watch.monitor.probe(A)
            worker.answers["/health"] = httpx.Response(500)
            await watch.monitor.probe(A)
    assert [line["healthy"] for line in logs if line["event"] == "worker.probed"] == [True, False]


async def test_a_worker_that_joins_is_looked_at_and_watched_until_it_leaves() -> None:
    newcomer = FakeWorker("llama")
    async with Watch({"a": FakeWorker("llama")}) as watch:
        watch.workers |= {"b": newcomer}
        await watch.monitor.start()
        watch.registry.add(member("b"))
        await watch.observed.until(lambda: len(watch.observed.of(WorkerSampled, "b")) > 3)
        assert newcomer.asked[:3] == ["/health", "/v1/models", "/metrics"]
        watch.registry.remove(B)
        asked = len(newcomer.asked)
        seen = len(watch.observed.of(WorkerSampled, "a"))
        await watch.observed.until(lambda: len(watch.observed.of(WorkerSampled, "a")) > seen + 5)
        assert len(newcomer.asked) == asked
        assert watch.observed.of(WorkerProbed, "b")[-1] in watch.observed.events[: watch.observed.events.index(down(B))]


async def test_a_worker_that_drains_leaves_with_the_tick_after_its_last_request() -> None:
    async with Watch({"a": FakeWorker("llama")}) as watch:
        watch.in_flight = {A: 1}
        await watch.monitor.start()
        assert not watch.registry.remove(A)
        watch.in_flight = {}
        await watch.observed.until(lambda: watch.observed.of(WorkerDown, "a"))


def down(worker_id: WorkerId) -> WorkerDown:
    return WorkerDown(at_s=42.0, worker_id=worker_id)
