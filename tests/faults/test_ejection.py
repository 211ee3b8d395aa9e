"""Which failures count against a worker, how it is ejected and comes back, and what is left when all are faulty."""

import itertools
from dataclasses import replace
from typing import Any

import pytest

from gateway.core.hashing import rendezvous
from tests.faults.fault_rig import CHAT, DECODE, NO_HEAD, PATIENT, PREFILL, Ending, Gate, Rig, body_for, until

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]

BOTH_FORMS = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
POLICIES = pytest.mark.parametrize("policy", ["local", "remote"])
FOR_EVER = {"open_s": 3600.0, "max_open_s": 3600.0}


async def ask_times(rig: Rig, gate: Gate, times: int, **headers: str) -> None:
    """Requests that prefer p0 and d0, one after the other, each with a right answer."""
    for _ in range(times):
        await rig.is_right(await gate.ask(CHAT, body_for(CHAT), **headers))


async def errors(gate: Gate) -> dict[tuple[str, ...], float]:
    return (await gate.samples()).by("tidegate_upstream_errors_total", "worker", "kind")


async def test_a_worker_that_refuses_is_ejected_and_comes_back_by_itself(rig: Rig) -> None:
    gate = await rig.gate("local", health={"consecutive_failures": 2, "open_s": 0.3, "max_open_s": 0.3})
    await rig.fleet.fault("d0", "refuse")
    await ask_times(rig, gate, 1)
    assert (gate.state("d0"), await errors(gate)) == ("closed", {("d0", "connect"): 1})
    await ask_times(rig, gate, 1)
    assert gate.state("d0") in {"open", "half_open"}
    await until(lambda: gate.state("d0") == "half_open", what="d0 is on trial")
    failures = (await errors(gate))["d0", "connect"]
    await ask_times(rig, gate, 1)
    # On trial it was asked once, failed, and is out again; the client has noticed nothing.
    assert (await errors(gate))["d0", "connect"] == failures + 1
    await rig.fleet.clear("d0")
    await until(lambda: gate.state("d0") == "half_open", what="d0 is on trial again")
    await ask_times(rig, gate, 2)
    assert gate.state("d0") == "closed"
    assert (await rig.fleet.ended("d0"))["length"] == 2
    assert (await errors(gate))["d0", "connect"] == failures + 1
    await gate.nothing_left()


async def test_an_ejected_worker_is_not_asked(rig: Rig) -> None:
    gate = await rig.gate("local", health={"consecutive_failures": 2} | FOR_EVER)
    await rig.fleet.fault("d0", "refuse")
    await ask_times(rig, gate, 6)
    assert (gate.state("d0"), gate.state("d1")) == ("open", "closed")
    assert await errors(gate) == {("d0", "connect"): 2}
    assert gate.blamed() == {"d0"}


async def test_an_ejected_prefill_worker_is_not_asked(rig: Rig) -> None:
    gate = await rig.gate("remote", health={"consecutive_failures": 2} | FOR_EVER)
    await rig.fleet.fault("p0", "status", status=500)
    await ask_times(rig, gate, 5)
    assert (gate.state("p0"), gate.state("p1")) == ("open", "closed")
    assert await errors(gate) == {("p0", "server_error"): 2}
    assert (await rig.fleet.ended("p1"))["length"] == 5
    await gate.nothing_left()


async def test_probes_notice_a_worker_that_refuses_before_a_request_does(rig: Rig) -> None:
    often = {"probe_interval_s": 0.05, "probe_timeout_s": 30.0, "scrape_interval_s": 3600.0}
    gate = await rig.gate("local", fleet=often)
    await rig.fleet.fault("d0", "refuse")
    await until(lambda: gate.state("d0") == "down", what="d0 is down")
    await ask_times(rig, gate, 2)
    assert await errors(gate) == {}
    await rig.fleet.clear("d0")
    await until(lambda: gate.state("d0") == "half_open", what="d0 is on trial")
    # By now d1 knows the prompt; a session of d0's own is not swayed by that.
    session = next(name for name in map(str, itertools.count()) if rendezvous(name, DECODE) == "d0")
    await ask_times(rig, gate, 2, x_session_id=session)
    assert gate.state("d0") == "closed"
    assert (await rig.fleet.ended("d0"))["length"] == 2
    assert gate.blamed() == set()


@pytest.mark.parametrize("status", [500, 503])
async def test_a_probe_that_is_answered_with_an_error_takes_a_worker_out_too(rig: Rig, status: int) -> None:
    often = {"probe_interval_s": 0.05, "probe_timeout_s": 30.0, "scrape_interval_s": 3600.0}
    gate = await rig.gate("local", fleet=often)
    await rig.fleet.fault("d0", "status", status=status, route="probe")
    await until(lambda: gate.state("d0") == "down", what="d0 is down")
    await ask_times(rig, gate, 1)
    assert await errors(gate) == {}
    assert not await rig.fleet.ended("d0")


async def test_the_only_decode_worker_is_asked_however_ejected_it_is(rig: Rig) -> None:
    gate = await rig.gate("local", workers=("d0",), health={"consecutive_failures": 1} | FOR_EVER)
    await rig.fleet.fault("d0", "refuse")
    for _ in range(3):
        reply = await gate.ask(CHAT, body_for(CHAT))
        assert (reply.status, reply.error(stream=False)["code"]) == (502, "bad_gateway")
    assert gate.state("d0") == "open"
    assert await errors(gate) == {("d0", "connect"): 3}
    await rig.fleet.clear("d0")
    await ask_times(rig, gate, 1)


@pytest.mark.parametrize("status", [429, 503])
async def test_overload_is_told_to_the_client_and_counts_against_nobody(rig: Rig, status: int) -> None:
    gate = await rig.gate("local", workers=("d0",), health={"consecutive_failures": 1} | FOR_EVER)
    await rig.fleet.fault("d0", "status", status=status, retry_after_s=7)
    for _ in range(4):
        reply = await gate.ask(CHAT, body_for(CHAT, stream=True))
        assert (reply.status, reply.headers["retry-after"]) == (status, "7")
        assert reply.error(stream=False)["code"] == status
    assert (gate.state("d0"), gate.blamed()) == ("closed", set())
    assert await errors(gate) == {("d0", "overloaded"): 4}
    assert (await gate.samples()).sum("tidegate_retries_total") == 0


@POLICIES
@pytest.mark.parametrize("status", [400, 404, 413, 422])
async def test_a_clients_mistake_counts_against_nobody(rig: Rig, status: int, policy: str) -> None:
    gate = await rig.gate(policy, health={"consecutive_failures": 1} | FOR_EVER)
    for worker in (*PREFILL, *DECODE):
        await rig.fleet.fault(worker, "status", status=status)
    for _ in range(4):
        reply = await gate.ask(CHAT, body_for(CHAT))
        assert (reply.status, reply.error(stream=False)["code"]) == (status, status)
    assert gate.blamed() == set()
    assert await errors(gate) == {}
    assert (await gate.samples()).by("tidegate_requests_total", "outcome") == {("client_error",): 4}


@pytest.mark.parametrize("status", [501, 505])
async def test_an_error_that_no_other_worker_would_answer_otherwise_is_passed_on_and_counts(
    rig: Rig, status: int
) -> None:
    gate = await rig.gate("local")
    await rig.fleet.fault("d0", "status", status=status)
    reply = await gate.ask(CHAT, body_for(CHAT))
    assert (reply.status, reply.error(stream=False)["code"]) == (status, status)
    await gate.ended(
        Ending(
            outcome="upstream_error",
            status=status,
            path="local",
            worker="d0",
            errors={("d0", "server_error"): 1},
            blamed=frozenset({"d0"}),
        )
    )


# --- all of them faulty ----------------------------------------------------------------------------------------------

ALL_FAULTY: dict[str, tuple[dict[str, Any], str, int, str | int]] = {
    # fault, kind, the client's status, the code that it is told
    "refuse": ({"kind": "refuse"}, "connect", 502, "bad_gateway"),
    "hang": ({"kind": "hang"}, "timeout", 504, "gateway_timeout"),
    "500": ({"kind": "status", "status": 500}, "server_error", 500, 500),
    "503": ({"kind": "status", "status": 503, "retry_after_s": 7}, "overloaded", 503, 503),
    "dies": ({"kind": "die_before_first_byte"}, "broken", 502, "bad_gateway"),
    "garbage": ({"kind": "garbage"}, "protocol", 502, "bad_gateway"),
}


@BOTH_FORMS
@POLICIES
@pytest.mark.parametrize("name", ALL_FAULTY)
async def test_when_every_decode_worker_is_faulty_the_error_is_honest(
    rig: Rig, name: str, policy: str, stream: bool
) -> None:
    fault, kind, status, code = ALL_FAULTY[name]
    # Here the limit is that of the settings: no decode worker has an answer to give within it.
    gate = await rig.gate(policy, upstream={"decode": PATIENT | NO_HEAD} if name == "hang" else {})
    for worker in DECODE:
        await rig.fleet.fault(worker, **fault)
    reply = await gate.ask(CHAT, body_for(CHAT, stream=stream))
    assert (reply.status, reply.whole) == (status, True)
    assert reply.error(stream=False)["code"] == code
    assert reply.headers.get("retry-after") == ("7" if name == "503" else None)
    remote = policy == "remote"
    ending = Ending(
        outcome="timeout" if name == "hang" else "upstream_error",
        status=status,
        path=policy,
        prefill="p0" if remote else None,
        worker="d1",
        attempt=2,
        retries={kind: 1},
        errors={("d0", kind): 1, ("d1", kind): 1},
        blamed=frozenset() if name == "503" else frozenset(DECODE),
        holding=frozenset({"p0"}) if remote else frozenset(),
    )
    if remote and name == "500":
        # It might be for want of KV, so d1 is asked once more without any: then it is d1's own fault.
        ending = replace(
            ending,
            path="local",
            prefill=None,
            attempt=3,
            retries={kind: 2},
            errors={("d0", kind): 1, ("d1", kind): 2},
            blamed=frozenset({"d1"}),
            holding=frozenset(PREFILL),
        )
    await gate.ended(ending)


@BOTH_FORMS
async def test_when_every_worker_refuses_the_attempts_are_limited(rig: Rig, stream: bool) -> None:
    gate = await rig.gate("remote")
    for worker in (*PREFILL, *DECODE):
        await rig.fleet.fault(worker, "refuse")
    reply = await gate.ask(CHAT, body_for(CHAT, stream=stream))
    assert (reply.status, reply.error(stream=False)["code"]) == (502, "bad_gateway")
    (record,) = await gate.records(1)
    assert record.decision is not None
    assert (record.decision.attempt, record.decision.path) == (3, "local")
    assert sum((await errors(gate)).values()) == 3
    assert (await gate.samples()).by("tidegate_retries_total", "cause") == {("connect",): 2}
    await gate.nothing_left()


async def test_a_spent_retry_budget_leaves_each_request_one_attempt(rig: Rig) -> None:
    gate = await rig.gate(
        "local", upstream={"retry_ratio": 0.0, "retry_reserve": 2}, health={"consecutive_failures": 100}
    )
    await rig.fleet.fault("d0", "die_before_first_byte")
    await ask_times(rig, gate, 2)
    for _ in range(3):
        reply = await gate.ask(CHAT, body_for(CHAT))
        assert (reply.status, reply.error(stream=False)["code"]) == (502, "bad_gateway")
    samples = await gate.samples()
    assert samples.sum("tidegate_retries_total") == 2
    assert samples.by("tidegate_requests_total", "outcome") == {("ok",): 2, ("upstream_error",): 3}
    assert samples.by("tidegate_upstream_errors_total", "worker", "kind") == {("d0", "broken"): 5}
    await gate.records(5)
    await gate.nothing_left()


async def test_one_attempt_is_one_attempt(rig: Rig) -> None:
    gate = await rig.gate("local", upstream={"max_attempts": 1})
    await rig.fleet.fault("d0", "status", status=500)
    reply = await gate.ask(CHAT, body_for(CHAT))
    assert (reply.status, reply.error(stream=False)["code"]) == (500, 500)
    await gate.ended(
        Ending(
            outcome="upstream_error",
            status=500,
            path="local",
            worker="d0",
            errors={("d0", "server_error"): 1},
            blamed=frozenset({"d0"}),
        )
    )


async def test_a_connection_that_was_kept_and_is_dead_costs_no_attempt(rig: Rig) -> None:
    """It may have died while nobody used it: the same worker is asked once more, on a fresh connection."""
    gate = await rig.gate("local", workers=("d0",))
    await ask_times(rig, gate, 1)
    await rig.fleet.fault("d0", "die_before_first_byte", count=1)
    await ask_times(rig, gate, 1)
    assert await rig.fleet.fired("d0") == 1
    assert gate.gateway.pool.stats().stale_retries == 1
    assert await errors(gate) == {}
    assert gate.blamed() == set()
