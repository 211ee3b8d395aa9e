"""A fault of one decode worker, before a byte of its answer: another one answers, and only the first is blamed.

Where it answers an error of its own behind a hand-over, the prefill worker may be at fault as well: then nobody is
blamed, and neither is asked again.
"""

from typing import Any

import pytest

from tests.faults.fault_rig import CHAT, LONG_S, NO_HEAD, PREFILL, Ending, Rig, body_for

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]

BEFORE_A_BYTE: dict[str, tuple[dict[str, Any], str]] = {
    "refuse": ({"kind": "refuse"}, "connect"),
    "hang": ({"kind": "hang"}, "timeout"),
    "too slow": ({"kind": "slow", "delay_s": LONG_S}, "timeout"),
    "500": ({"kind": "status", "status": 500}, "server_error"),
    "502": ({"kind": "status", "status": 502}, "server_error"),
    "504": ({"kind": "status", "status": 504}, "server_error"),
    "503": ({"kind": "status", "status": 503, "retry_after_s": 3}, "overloaded"),
    "429": ({"kind": "status", "status": 429, "retry_after_s": 3}, "overloaded"),
    "dies": ({"kind": "die_before_first_byte"}, "broken"),
    "garbage": ({"kind": "garbage"}, "protocol"),
}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("policy", ["local", "remote"])
@pytest.mark.parametrize("name", BEFORE_A_BYTE)
async def test_another_decode_worker_answers(rig: Rig, name: str, policy: str, stream: bool) -> None:
    fault, kind = BEFORE_A_BYTE[name]
    gate = await rig.gate(policy, hasty={"d0": NO_HEAD} if kind == "timeout" else {})
    await rig.fleet.fault("d0", **fault)
    await rig.is_right(await gate.ask(CHAT, body_for(CHAT, stream=stream)))
    remote = policy == "remote"
    doubtful = remote and kind == "server_error"
    prefill = "p1" if doubtful else "p0"
    await gate.ended(
        Ending(
            path=policy,
            prefill=prefill if remote else None,
            worker="d1",
            attempt=2,
            retries={kind: 1},
            errors={("d0", kind): 1},
            blamed=frozenset() if doubtful or kind == "overloaded" else frozenset({"d0"}),
            holding=frozenset({"p0"}) if remote else frozenset(),
        )
    )
    if remote:
        # The second attempt has a prefill of its own: what the first one had is never claimed.
        prefills = [(await rig.fleet.ended(worker))["length"] for worker in PREFILL]
        assert prefills == ([1, 1] if doubtful else [2, 0])
        assert await rig.fleet.failed_transfers() == 0
