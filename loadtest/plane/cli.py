"""`python -m loadtest.plane`: the gateway's data plane beside vllm-router and nginx, on two cores of this machine.

The proxy has one core, the mock workers and the load the other. Only ratios of one run mean anything. Exit status 1
where a claim misses, 2 where a part failed; 0 where the benchmark's sources are not here, which it says.
"""

import argparse
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from loadtest.fleet.processes import FleetError
from loadtest.plane.building import BuildError, Skipped
from loadtest.plane.claims import PAIR, SINGLE, claims
from loadtest.plane.hand_over import HandOverError
from loadtest.plane.measuring import LoadError
from loadtest.plane.processes import NoCore, require_cores
from loadtest.plane.proxies import MODES
from loadtest.plane.report import summary, tables
from loadtest.plane.rivals import DEFAULT_CACHE, RIVALS
from loadtest.plane.scenarios import ALL_NAMES, CPU_SCENARIOS, PLAIN
from loadtest.plane.session import HAND_OVER, Options, play

DEFAULT_BENCH = Path("../shared/bench")
SCENARIOS = (*ALL_NAMES, HAND_OVER)


def main(argv: Sequence[str] | None = None) -> None:
    """Run, print tables and a line for each claim, and exit."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    options = _options(arguments)
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # so that what was started is ended too
    began_s = time.monotonic()

    def said(words: str) -> None:
        print(f"{time.monotonic() - began_s:6.1f} s  {words}", flush=True)

    try:
        require_cores(options.proxy_core, options.load_core)
        report = play(options, said)
    except Skipped as error:
        print(f"skipped: {error}")
        sys.exit(0)
    except (BuildError, FleetError, HandOverError, LoadError, NoCore) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        sys.exit(2)
    if arguments.json is not None:
        arguments.json.write_bytes(msgspec.json.encode(report))
    found = claims(report)
    print("", tables(report), "", *summary(report), *found, sep="\n")
    missed = sum(not check.holds for check in found)
    print(f"{len(found) - missed}/{len(found)} claims hold")
    sys.exit(bool(missed))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m loadtest.plane", description=__doc__)
    parser.add_argument("--bench", type=Path, default=DEFAULT_BENCH, help="directory of mock.c and load.c")
    parser.add_argument("--cache", type=Path, default=DEFAULT_CACHE, help="where vllm-router and nginx are kept")
    parser.add_argument("--rounds", type=_positive, default=5)
    parser.add_argument("--seconds", type=float, default=5.0, help="how long each load lasts")
    for name, values, words in (
        ("ours", MODES, "data planes of the gateway; the first is judged"),
        ("fleet", (SINGLE, PAIR), "one worker that does both, or one that prefills and one that decodes"),
        ("scenarios", SCENARIOS, "loads to run"),
        ("against", RIVALS, "others to measure beside it"),
    ):
        parser.add_argument(f"--{name}", type=_some_of(values), default=values, help=f"{words}: {','.join(values)}")
    parser.add_argument("--hand-overs", type=_positive, default=1000, help="requests of the remote path's gap")
    parser.add_argument("--proxy-core", type=int, default=0)
    parser.add_argument("--load-core", type=int, default=1)
    parser.add_argument("--json", type=Path, default=None, help="where to write all samples")
    parser.add_argument(
        "--profile", type=Path, default=None, help="look at a load with py-spy: .svg, .json, else a table"
    )
    names = [scenario.name for scenario in CPU_SCENARIOS]
    parser.add_argument("--profile-of", choices=names, default=PLAIN.name, help="the load that --profile looks at")
    return parser


def _options(arguments: argparse.Namespace) -> Options:
    return Options(
        bench=arguments.bench,
        cache=arguments.cache,
        fleets=arguments.fleet,
        scenarios=arguments.scenarios,
        ours=arguments.ours,
        against=arguments.against,
        rounds=arguments.rounds,
        seconds=arguments.seconds,
        hand_overs=arguments.hand_overs,
        proxy_core=arguments.proxy_core,
        load_core=arguments.load_core,
        profile=arguments.profile,
        profile_of=arguments.profile_of,
    )


def _some_of(values: Sequence[str]) -> Callable[[str], tuple[str, ...]]:
    def read(text: str) -> tuple[str, ...]:
        names = tuple(name for name in text.split(",") if name)
        unknown = [name for name in names if name not in values]
        if unknown:
            raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(values)}")
        return names

    return read


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is less than 1")
    return value
