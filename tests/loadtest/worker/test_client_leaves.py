"""A client that leaves takes its request out of the engine, whatever state it is in."""

import pytest

from tests.loadtest.worker.worker_lab import CHAT, Emulated, Exchange, Lab, chat, settle

LONG = chat("x" * 4000, max_tokens=500, ignore_eos=True)


def idle(worker: Emulated) -> bool:
    snapshot = worker.host.snapshot()
    return snapshot.running == 0 and snapshot.waiting == 0 and snapshot.kv_used_ratio == 0.0


async def leave(lab: Lab, exchange: Exchange) -> None:
    exchange.leave()
    await settle()
    assert exchange.task.done()
    await exchange.task


@pytest.mark.parametrize("stream", [False, True])
async def test_leaving_while_tokens_are_made_frees_the_kv(lab: Lab, stream: bool) -> None:
    worker = lab.worker()
    exchange = lab.begin(worker, CHAT, LONG | {"stream": stream})
    await lab.until(lambda: worker.host.snapshot().generated_tokens >= 3)
    assert not idle(worker)
    await leave(lab, exchange)
    await lab.until(lambda: idle(worker))
    assert not exchange.reply.complete
    assert (await lab.metrics(worker))['vllm:request_success_total{finished_reason="abort"}'] == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_leaving_while_waiting_empties_the_queue(lab: Lab, stream: bool) -> None:
    worker = lab.worker(total_blocks=48)
    first = lab.begin(worker, CHAT, LONG)
    await lab.until(lambda: worker.host.snapshot().running == 1)
    second = lab.begin(worker, CHAT, chat("y" * 4000, max_tokens=500, ignore_eos=True, stream=stream))
    await settle()
    assert worker.host.snapshot().waiting == 1
    await leave(lab, second)
    assert worker.host.snapshot().waiting == 0
    assert (await lab.run(first.task)).json()["usage"]["completion_tokens"] == 500
    assert idle(worker)


async def test_leaving_takes_every_choice_along(lab: Lab) -> None:
    worker = lab.worker()
    exchange = lab.begin(worker, CHAT, LONG | {"n": 3})
    await lab.until(lambda: worker.host.snapshot().running == 3)
    await leave(lab, exchange)
    await lab.until(lambda: idle(worker))


async def test_leaving_before_the_body_is_complete_does_nothing(lab: Lab) -> None:
    worker = lab.worker()
    exchange = lab.begin(worker, CHAT, LONG)
    exchange._inbox.get_nowait()
    exchange.leave()
    await settle()
    assert exchange.task.done()
    assert exchange.reply.status is None
    assert idle(worker)


async def test_leaving_after_the_answer_changes_nothing(lab: Lab) -> None:
    worker = lab.worker()
    exchange = lab.begin(worker, CHAT, chat(max_tokens=2))
    await lab.run(exchange.task)
    exchange.leave()
    await settle()
    found = await lab.metrics(worker)
    assert found['vllm:request_success_total{finished_reason="abort"}'] == 0
    assert found['vllm:request_success_total{finished_reason="length"}'] == 1


async def test_server_that_drops_the_call_frees_the_kv(lab: Lab) -> None:
    """uvicorn cancels the task where the patience for a graceful stop has ended."""
    worker = lab.worker()
    exchange = lab.begin(worker, CHAT, LONG)
    await lab.until(lambda: worker.host.snapshot().running == 1)
    exchange.task.cancel()
    await settle()
    assert exchange.task.cancelled()
    await lab.until(lambda: idle(worker))
