"""`python -m loadtest.replicas`: shared conversations, while a gateway, Redis and a decode worker are killed.

Three gateways with one Redis over an emulated fleet; 2,000 sessions whose every turn comes by way of the next gateway.
Exit status 1 where something does not hold, 2 where there is no Redis or Valkey server, or a part did not start.
"""

import argparse
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import replace

import uvloop

from loadtest.fleet.processes import FleetError
from loadtest.replicas.checks import check_lines, checks, notes
from loadtest.replicas.fleet import NoRedis, ReplicaFleet
from loadtest.replicas.plan import Plan, quick
from loadtest.replicas.run import play

QUICK_SESSIONS = 200


def main(argv: Sequence[str] | None = None) -> None:
    """Run, print a line for each check, and exit with 1 where one misses."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.replicas", description=__doc__)
    parser.add_argument("--sessions", type=int, default=None, help="2,000, or 200 with --quick, unless given")
    parser.add_argument("--quick", action="store_true", help="a minute, with fewer sessions and shorter pauses")
    arguments = parser.parse_args(argv)
    plan = _plan(arguments.sessions, is_quick=arguments.quick)
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # so that what was started is ended too
    began_s = time.monotonic()

    def said(words: str) -> None:
        print(f"{time.monotonic() - began_s:6.1f} s  {words}", flush=True)

    try:
        with ReplicaFleet.started() as fleet:
            run = uvloop.run(play(fleet, plan, said))
    except (NoRedis, FleetError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        sys.exit(2)
    found = checks(run, plan)
    print(*notes(run), *check_lines(found), sep="\n")
    sys.exit(not all(check.holds for check in found))


def _plan(sessions: int | None, *, is_quick: bool) -> Plan:
    if is_quick:
        return quick(QUICK_SESSIONS if sessions is None else sessions)
    return Plan() if sessions is None else replace(Plan(), sessions=sessions)


if __name__ == "__main__":
    main()
