"""Where the gateway's time goes, by py-spy.

The rule of this module: the suffix of the file says what is written: .svg a flame graph, .json speedscope's format,
both of Python's own time alone; anything else tables of functions, made from the raw stacks of the main thread. There
the event loop's own share holds what the kernel took for reading, writing and waiting.
"""

import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from loadtest.plane.building import Skipped

RATE_HZ = 500
TOP = 40
FORMATS = {".svg": "flamegraph", ".json": "speedscope"}
MAIN_THREAD = ": MainThread"
PATIENCE_S = 60.0


def start_profile(pid: int, file: Path, seconds: float) -> subprocess.Popen[bytes]:
    """Begin to look at a process; raises Skipped where py-spy is not installed."""
    program = shutil.which("py-spy") or shutil.which("py-spy", path=str(Path(sys.executable).parent))
    if program is None:
        raise Skipped("py-spy is not installed (pip install py-spy)")
    kind = FORMATS.get(file.suffix, "raw")
    options = ["--pid", str(pid), "--duration", f"{seconds:.0f}", "--rate", str(RATE_HZ), "--format", kind]
    # Threads that wait for a queue or a pipe would be most of what is seen.
    which = "--gil" if file.suffix in FORMATS else "--threads"
    command = [program, "record", *options, which, "--output", str(file)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)  # noqa: S603


def end_profile(process: subprocess.Popen[bytes], file: Path) -> None:
    """Wait until it is written; raises Skipped with what py-spy said where it is not."""
    try:
        _, said = process.communicate(timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise Skipped("py-spy did not end") from None
    if process.returncode != 0 or not file.is_file():
        raise Skipped(f"py-spy: {said.decode(errors='replace').strip()}")
    if file.suffix not in FORMATS:
        file.write_text(top_functions(file.read_text().splitlines()))


def top_functions(stacks: Iterable[str], top: int = TOP) -> str:
    """Two Markdown tables of where samples were, of lines `thread;frame;frame count`, innermost last.

    `own` is a function's share without what it calls, `with callees` its share with it; first by the one, then by the
    other, where those that were there in every sample say nothing.
    """
    own: Counter[str] = Counter()
    whole: Counter[str] = Counter()
    for line in stacks:
        stack, _, count = line.rpartition(" ")
        thread, *frames = (_function(frame) for frame in stack.split(";"))
        if not thread.endswith(MAIN_THREAD) or not frames or not count.isdigit():
            continue
        own[frames[-1]] += int(count)
        for frame in set(frames):
            whole[frame] += int(count)
    below = Counter({name: count for name, count in whole.items() if count < own.total()})
    return "\n".join(_table(by.most_common(top), own, whole) for by in (own, below))


def _table(chosen: Sequence[tuple[str, int]], own: Counter[str], whole: Counter[str]) -> str:
    total = max(own.total(), 1)
    rows = [f"| `{name}` | {own[name] / total:.1%} | {whole[name] / total:.1%} |" for name, _ in chosen]
    return "\n".join(["| function | own | with callees |", "|---|--:|--:|", *rows]) + "\n"


def _function(frame: str) -> str:
    """`name (file)` without the line, so that a function is one row."""
    name, _, line = frame.rpartition(":")
    return f"{name})" if name and line.rstrip(")").isdigit() else frame
