"""`python -m loadtest.worker`: serves the emulated workers of a JSON list of worker configurations.

It writes one line of JSON when every worker answers, `{"workers": [{"name", "role", "model", "host", "port",
"url"}]}`, and ends when its standard input closes, or on SIGINT or SIGTERM: it never outlives its parent.
"""

import argparse
import asyncio
import os
import signal
import sys
import threading
from collections.abc import Sequence

import msgspec
import uvloop

from loadtest.engine.presets import UnknownEngine
from loadtest.worker.config import WorkerConfig
from loadtest.worker.server import BoundWorker, serve_workers


def main(argv: Sequence[str] | None = None) -> None:
    """Serve until told to stop."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.worker", description=__doc__)
    parser.add_argument("--config-json", required=True, help="a JSON list of worker configurations")
    text: str = parser.parse_args(argv).config_json
    try:
        configs = msgspec.json.decode(text, type=list[WorkerConfig])
    except msgspec.MsgspecError as error:
        parser.error(f"--config-json: {error}")
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(configs))
    except (OSError, ValueError, UnknownEngine) as error:
        parser.exit(1, f"{parser.prog}: {error}\n")


async def _serve(configs: Sequence[WorkerConfig]) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    threading.Thread(target=_watch_input, args=(loop, stop), daemon=True).start()
    await serve_workers(configs, stop=stop, on_ready=_announce)


def _watch_input(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    """Reads the descriptor itself: a thread inside sys.stdin would hold its lock when the interpreter ends."""
    while os.read(0, 4096):
        pass
    loop.call_soon_threadsafe(stop.set)


def _announce(workers: list[BoundWorker]) -> None:
    line = msgspec.json.encode({"workers": workers}).decode()
    print(line, file=sys.stdout, flush=True)


if __name__ == "__main__":
    main()
