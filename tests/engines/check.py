"""`python -m tests.engines.check`: a real vLLM prefill/decode pair behind the gateway, checked from outside.

The rule of this module: without engines it says what is missing and exits with 0; with them it exits with 0 only if
every check passed. The pair is started by the script that TIDEGATE_SHARED (or ../shared) holds, or found running.
"""

import argparse
import contextlib
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import httpx

from tests.engines import failure_checks, serving_checks, work_checks
from tests.engines.checklist import Checklist, note
from tests.engines.engine_client import PATIENCE_S, GatewayClient
from tests.engines.engine_pair import Engines, EnginesAbsentError, Pair, running_pair
from tests.engines.pair_gateway import decision_log, running_gateway
from tests.engines.pair_lab import Check, Lab

MODELS = {"tiny": "tiny-llama", "smol": "SmolLM2-135M-Instruct"}
GROUPS = ("remote", "local", "dynamo", "kill")


def main() -> int:
    """Run the groups that the arguments name; the exit code."""
    options = _options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        engines = Engines.find(MODELS[options.model])
    except EnginesAbsentError as error:
        print(f"skipped: no engines here: {error}")
        return 0
    with contextlib.ExitStack() as stack:
        work = options.work or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tidegate-engines-")))
        work.mkdir(parents=True, exist_ok=True)
        began_s = time.monotonic()
        pair = stack.enter_context(running_pair(engines, keep=options.keep))
        note("pair", f"{pair.model} on {pair.prefill.url} and {pair.decode.url} in {time.monotonic() - began_s:.0f} s")
        checklist = Checklist()
        for group in options.only:
            _run_group(checklist, group, pair, work)
    print(checklist.summary())
    return 0 if checklist.passed == len(checklist.rows) else 1


def _run_group(checklist: Checklist, group: str, pair: Pair, work: Path) -> None:
    if group == "kill" and not pair.is_ours:
        note(group, "left out: the pair was started by somebody else")
        return
    policy = "remote" if group == "kill" else group
    with _gateway(pair, policy, work / group) as gateway:
        lab = Lab(pair=pair, gateway=gateway, path=policy)
        checklist.run(group, serving_checks.warm_up, lab)
        if group == "kill":
            _kill_and_restart(checklist, lab)
        else:
            for check in _healthy_checks(group):
                checklist.run(group, check, lab)
        for check in work_checks.BOOKS:
            checklist.run(group, check, lab)


def _healthy_checks(group: str) -> tuple[Check, ...]:
    if group == "dynamo":
        return (work_checks.dynamo_turns,)
    if group == "local":
        return (*serving_checks.ANSWERS, work_checks.local_prefill)
    return (*serving_checks.ANSWERS, work_checks.remote_load, work_checks.prefill_cache)


def _kill_and_restart(checklist: Checklist, lab: Lab) -> None:
    pair = lab.pair
    checklist.run("kill P", failure_checks.prefill_worker_dies, lab)
    checklist.run("kill P", failure_checks.prefill_worker_is_missed, lab)
    checklist.run("kill P", failure_checks.comes_back, lab, pair.prefill)
    checklist.run("kill D", failure_checks.decode_worker_dies, lab)
    checklist.run("kill D", failure_checks.decode_worker_is_missed, lab)
    checklist.run("kill D", failure_checks.comes_back, lab, pair.decode)


@contextlib.contextmanager
def _gateway(pair: Pair, policy: str, folder: Path) -> Iterator[GatewayClient]:
    with (
        running_gateway(pair, {"policy": policy}, folder) as url,
        httpx.Client(timeout=PATIENCE_S, trust_env=False) as client,
    ):
        yield GatewayClient(client, url, decision_log(folder), pair.model)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.engines.check", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=GROUPS, default=GROUPS, help="which groups of checks to run")
    parser.add_argument("--model", choices=list(MODELS), default="tiny", help="random weights, or SmolLM2 (slower)")
    parser.add_argument("--keep", action="store_true", help="leave the pair running for the next run")
    parser.add_argument("--work", type=Path, help="keep the gateway's settings and logs in this folder")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
