"""The mock worker and the load generator, two C programs, made ready to be run.

The rule of this module: the sources are the benchmark directory's own, compiled elsewhere with small additions,
each of which is said here. A source in which an addition finds no place is refused.
"""

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from loadtest.worker.pd import handover

MEMBERS_VARIABLE = "LOAD_MEMBERS"
"""Further members of the load's requests, with a comma before each."""
HIDES_VARIABLE = "LOAD_HIDES"
"""Where it is set, a stream may lack its usage: the gateway hides an event that was not asked for."""
RESTLESS = ',"top_p":1'
"""The member that asks the mock for its own events, each of which has a time stamp beside its text. Without it they are
as vLLM 0.32 writes them, and the stamp is in the text: nothing else changes from one to the next."""
TAIL_VARIABLE = "MOCK_TAIL"
"""Its value goes into the mock's unstreamed answer, after all other members."""

Addition = tuple[str, str]
"""A piece of the source, which is there once, and what stands in its place."""

LOAD_ADDITIONS: tuple[Addition, ...] = (
    (r"\"stream\":%s}", r"\"stream\":%s%s}"),
    (
        'stream?"true":"false")',
        f'stream?"true":"false",getenv("{MEMBERS_VARIABLE}")?getenv("{MEMBERS_VARIABLE}"):"")',
    ),
    ("c->events!=n+2", f'c->events!=n+2&&!(getenv("{HIDES_VARIABLE}")&&c->events==n+1)'),
)
_EVENT = (
    r"data: {\"id\":\"chatcmpl-0123456789ab\",\"object\":\"chat.completion.chunk\",\"created\":1700000000,"
    r"\"model\":\"mock\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\" word%04d %016lx\"},"
    r"\"logprobs\":null,\"finish_reason\":null,\"token_ids\":null}]}\n\n"
)
MOCK_ADDITIONS: tuple[Addition, ...] = (
    ("int dead; int wout;", "int dead; int restless; int wout;"),
    ("c->streaming=1; if", r'c->streaming=1; c->restless=!!memmem(body,bl,"\"top_p\"",7); if'),
    (
        "if(c->i<c->n){ k=sprintf(",
        f'if(c->i<c->n){{ k=!c->restless?sprintf(b,"{_EVENT}",c->i,(unsigned long)now()):sprintf(',
    ),
    (r"\"completion_tokens\":64}}", r"\"completion_tokens\":64}%s}"),
    ('to sleep at night.")', f'to sleep at night.",getenv("{TAIL_VARIABLE}")?getenv("{TAIL_VARIABLE}"):"")'),
    ("char body[1024]", "char body[4096]"),
    ("static char resp[2048]", "static char resp[8192]"),
)


class Skipped(RuntimeError):  # noqa: N818 (it says what is the case)
    """Something that the benchmark needs is not here, by its name."""


class BuildError(RuntimeError):
    """A source could not be compiled, and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Programs:
    """Paths of the compiled programs."""

    mock: Path
    load: Path


def build(sources: Path, into: Path) -> Programs:
    """Compile both programs.

    Args:
        sources: the directory of mock.c and load.c.
        into: an existing directory.

    Raises:
        Skipped: a source, or the compiler, is not here.
        BuildError: a source is not the one that is known.
    """
    compiler = shutil.which("gcc")
    if compiler is None:
        raise Skipped("gcc is not in PATH")
    return Programs(
        mock=_compile(compiler, sources / "mock.c", into / "mock", MOCK_ADDITIONS),
        load=_compile(compiler, sources / "load.c", into / "load", LOAD_ADDITIONS),
    )


def hand_over_tail() -> str:
    """The member that makes an answer that of a prefill leg, with the comma before it."""
    params = handover(
        engine_id="mock", request_id="mock", address=("127.0.0.1", 1), tokens=100, cached_tokens=0, blocks=7
    )
    return ',"kv_transfer_params":' + msgspec.json.encode(params).decode()


def with_additions(source: str, additions: Sequence[Addition]) -> str:
    """The source with all additions; raises BuildError where one has no place, or several."""
    for old, new in additions:
        if source.count(old) != 1:
            raise BuildError(f"{old!r} stands {source.count(old)} times in the source, not once")
        source = source.replace(old, new)
    return source


def _compile(compiler: str, source: Path, program: Path, additions: Sequence[Addition]) -> Path:
    if not source.is_file():
        raise Skipped(f"{source} is not here")
    try:
        text = with_additions(source.read_text(), additions)
    except BuildError as error:
        raise BuildError(f"{source}: {error}") from None
    command = [compiler, "-O2", "-w", "-x", "c", "-o", str(program), "-"]
    done = subprocess.run(command, input=text.encode(), capture_output=True, check=False)  # noqa: S603 (gcc)
    if done.returncode != 0:
        raise BuildError(f"{source} cannot be compiled: {done.stderr.decode(errors='replace').strip()}")
    return program
