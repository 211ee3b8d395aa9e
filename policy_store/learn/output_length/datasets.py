"""Reads public data sets as rows: single prompts with the lengths of several models' answers, and agent sessions.

The rule of this module: a prompt's length is what the gateway would have estimated from its bytes before any
calibration, and not the recorded count, except where a data set has no text.
"""

import gzip
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import msgspec

from gateway.core.output_length.facts import PromptFacts
from policy_store.learn.output_length.rows import LengthRow, estimated_tokens, row_of
from policy_store.learn.output_length.sessions import airline, claude_code, text_session

BEGINNING = 60
"""Characters: prompts that share so many were made from one template."""


class DataSetError(Exception):
    """A data set that cannot be read, and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where a data set lies and how its lines are read."""

    file: str
    """Below the data folder."""
    sessions: bool
    """Whether rows of one group are calls of one conversation."""
    read: Callable[[bytes], Iterator[LengthRow]]
    """From one line to its rows."""


class _Prompt(msgspec.Struct, frozen=True):
    set: str
    cluster: str
    prompt: str
    out_tok: dict[str, int] | None = None


def _arena_hard(line: bytes) -> Iterator[LengthRow]:
    entry = msgspec.json.decode(line, type=_Prompt)
    # The older set has two prompts a topic; the newer one's few clusters are kinds, not topics, but some of its prompts
    # begin alike.
    group = entry.cluster if entry.set == "v0.1" else entry.prompt[:BEGINNING]
    for model, tokens in (entry.out_tok or {}).items():
        facts = PromptFacts(text=entry.prompt, prompt_tokens=estimated_tokens(entry.prompt), model=model)
        yield row_of(facts, tokens, group)


SOURCES: Mapping[str, Source] = MappingProxyType(
    {
        "arena_hard": Source(file="quality/arena_hard_prompts.jsonl.gz", sessions=False, read=_arena_hard),
        "miniswe": Source(file="traces/lmcache_agent_miniswe.jsonl.gz", sessions=True, read=text_session("miniswe")),
        "magagent": Source(file="traces/lmcache_agent_magagent.jsonl.gz", sessions=True, read=text_session("magagent")),
        "taubench": Source(file="traces/lmcache_agent_taubench.jsonl.gz", sessions=True, read=text_session("taubench")),
        "airline": Source(file="traces/taubench_gpt4o_airline_sessions.jsonl.gz", sessions=True, read=airline),
        "claude_code": Source(file="traces/claude_code_sessions.jsonl.gz", sessions=True, read=claude_code),
    }
)
"""HumanEval's solutions are 99 % short, and instruction sets under 0.02 % long [F]: neither is here."""


def load(name: str, folder: Path) -> list[LengthRow] | None:
    """The rows of a data set below `folder`; None where its file is not there.

    Raises:
        DataSetError: the file is damaged.
    """
    source = SOURCES[name]
    path = folder / source.file
    if not path.exists():
        return None
    try:
        with gzip.open(path) as lines:
            return [row for line in lines if line.strip() for row in source.read(line)]
    except (OSError, EOFError, zlib.error, msgspec.MsgspecError) as error:
        raise DataSetError(f"{path}: {error}") from error
