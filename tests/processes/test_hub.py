"""What the parent answers to its processes."""

import asyncio

import httpx
from prometheus_client.parser import text_string_to_metric_families

from gateway.commands.processes.changes import Added
from gateway.commands.processes.hub import Hub, Joins
from gateway.telemetry.exposition import Exposition
from gateway.telemetry.merging import packed
from gateway.telemetry.state import Readers
from tests.processes.processes_lab import Answers, Lab, Played, is_silent, says
from tests.telemetry.telemetry_factories import FakeState
from tests.telemetry.test_merging import counted

W1 = {"id": "w1", "url": "http://a:1"}


def shows(requests: int) -> Answers:
    """A process that has counted so many requests."""
    exposition = Exposition(counted(requests), Readers(state=FakeState()), version="1", commit="c")
    body = packed(exposition.families())
    return lambda _: httpx.Response(200, content=body)


class Parent:
    """A hub, and who has been said to serve."""

    def __init__(self, lab: Lab) -> None:
        self.serving: list[int] = []
        self.hub = Hub(lab.siblings, lab.fan_out, serves=self.serving.append, restarts=lambda: 3)

    async def scrape(self) -> dict[str, float]:
        """The metrics without labels, and requests over all labels."""
        body, _ = await self.hub.scrape("")
        samples = [s for family in text_string_to_metric_families(body.decode()) for s in family.samples]
        plain = {s.name.removeprefix("tidegate_"): s.value for s in samples if not s.labels}
        return plain | {"requests": sum(s.value for s in samples if s.name == "tidegate_requests_total")}


async def test_a_scrape_is_of_all_processes() -> None:
    parent = Parent(Lab(shows(3), shows(4)))
    shown = await parent.scrape()
    assert (shown["requests"], shown["processes"], shown["process_restarts_total"]) == (7, 2, 3)


async def test_one_that_is_silent_counts_as_before_and_is_counted_as_missed() -> None:
    lab = Lab(shows(3), shows(4))
    parent = Parent(lab)
    await parent.scrape()
    lab.processes[1].answer = is_silent
    shown = await parent.scrape()
    assert (shown["requests"], shown["processes"], shown["process_scrape_misses_total"]) == (7, 1, 1)


async def test_one_that_died_stays_in_the_sums_and_its_successor_is_added() -> None:
    lab = Lab(shows(3), shows(4))
    parent = Parent(lab)
    await parent.scrape()
    parent.hub.ended(1)
    shown = await parent.scrape()
    assert (shown["requests"], shown["processes"], shown["process_scrape_misses_total"]) == (7, 1, 0)
    lab.siblings.add(Played(1, shows(1)).sibling)
    assert (await parent.scrape())["requests"] == 8


async def test_what_a_process_showed_before_it_died_meanwhile_is_not_its_successors() -> None:
    lab = Lab(shows(3), shows(4))
    parent = Parent(lab)
    await parent.scrape()

    def dies(request: httpx.Request) -> httpx.Response:
        parent.hub.ended(1)
        return shows(5)(request)

    lab.processes[1].answer = dies
    assert (await parent.scrape())["requests"] == 7
    lab.siblings.add(Played(1, shows(1)).sibling)
    assert (await parent.scrape())["requests"] == 8


async def test_one_that_begins_hears_what_was_changed_and_is_called_from_then_on() -> None:
    lab = Lab(says(201, W1))
    parent = Parent(lab)
    parent.hub.begins(1)
    await lab.call("POST", "/workers", W1)
    beginning = await parent.hub.join(Joins(1, "/nowhere"))
    assert (beginning.changes, beginning.must_reload) == ([Added(W1)], False)
    assert parent.serving == [1]
    assert [sibling.number for sibling in lab.siblings] == [0, 1]


async def test_one_that_read_the_settings_before_a_reload_must_read_them_again() -> None:
    lab = Lab(says(200, {"changed": []}))
    parent = Parent(lab)
    parent.hub.begins(1)
    await lab.fan_out.reload()
    parent.hub.begins(2)
    assert [(await parent.hub.join(Joins(number, "/nowhere"))).must_reload for number in (1, 2)] == [True, False]


async def test_nobody_begins_amid_a_change() -> None:
    lab = Lab()
    parent = Parent(lab)
    async with lab.fan_out.one_at_a_time:
        joining = asyncio.create_task(parent.hub.join(Joins(0, "/nowhere")))
        for _ in range(10):
            await asyncio.sleep(0)
        assert not joining.done()
    await joining
