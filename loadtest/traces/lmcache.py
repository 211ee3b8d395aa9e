"""Reader of LMCache's agent traces, which hold the text of every call.

The rule of this module: what a prompt shares with an earlier one of its session is found in the text. Where a session
interleaves two speakers (tau-bench's user simulator and its agent), each call is held against the last one of either,
so that a prompt continues the conversation that it belongs to and not the one that happened to be sent before.

Which answers show the user text follows from what was recorded of them. All of miniswe's do, for it prints a thought
with every command. Of tau-bench's agent those without text were calls of tools. The user simulator's calls, known by
the greeting with which their prompts begin, are the user's own words and show nothing; the first of them opens the
session. magagent's files do not say which of its agents speaks to a user: all text counts.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path

import msgspec

from loadtest.traces.files import json_lines, opened
from loadtest.traces.sessions import Session, Turn
from loadtest.traces.types import TraceError
from policy_store.learn.continued import CONTINUES_RATIO, common_prefix

RECORDED_TPOT_S = 0.0058
"""Slope of the miniswe trace's call gaps over the output's length: what of a gap was the model's."""
SIMULATOR_GREETING = "Hi! How can I help you today?"
"""What tau-bench's user simulator is asked first."""


class _Call(msgspec.Struct, frozen=True):
    t: float
    keep: int
    """Leading characters that the prompt shares with the call before."""
    add: str
    in_tok: int
    out_tok: int
    output: str | None = None

    def shows_text(self, prompt: str) -> bool:
        """Whether it answers a user with text; where the text was not kept, any output counts as such."""
        has_text = self.out_tok > 0 if self.output is None else bool(self.output.strip())
        return has_text and not prompt.startswith(SIMULATOR_GREETING)


class _Line(msgspec.Struct, frozen=True):
    session: str
    calls: list[_Call]


@dataclass(slots=True)
class _Strand:
    """The last prompt of one speaker."""

    text: str
    input_tokens: int
    hash_ids: tuple[int, ...]


def lmcache_sessions(name: str, block_tokens: int, starts_s: Iterator[float]) -> Iterator[Session]:
    """The sessions of a file in file order; the n-th begins at the n-th of `starts_s`, for the file does not say.

    Calls without output (tau-bench's tool calls, whose text was not recorded) count one token. Between two calls lies
    what the model took, by `RECORDED_TPOT_S`, and the rest of the gap is the tool's.
    """
    fresh = count()
    with opened(Path(name)) as file:
        for (line, row), start_s in zip(json_lines(name, file, _Line), starts_s, strict=False):
            if not row.calls:
                raise TraceError(f"{name}:{line}: a session without calls")
            if any(call.in_tok < 1 or call.out_tok < 0 or call.keep < 0 for call in row.calls):
                raise TraceError(f"{name}:{line}: lengths must not be negative, and prompts of at least 1 token")
            yield Session(
                id=row.session,
                start_s=start_s,
                turns=tuple(_turns(row.calls, block_tokens, fresh)),
                block_tokens=block_tokens,
            )


def _turns(calls: Sequence[_Call], block_tokens: int, fresh: Iterator[int]) -> Iterator[Turn]:
    strands: list[_Strand] = []
    text = ""
    for call, after in zip(calls, [*calls[1:], None], strict=True):
        text = text[: call.keep] + call.add
        hash_ids = _continued(strands, text, call.in_tok, block_tokens, fresh)
        service_s = RECORDED_TPOT_S * call.out_tok
        yield Turn(
            input_tokens=call.in_tok,
            output_tokens=max(1, call.out_tok),
            hash_ids=hash_ids,
            think_s=max(0.0, after.t - call.t - service_s) if after else 0.0,
            service_s=service_s,
            is_visible=call.shows_text(text),
        )


def _continued(
    strands: list[_Strand], text: str, input_tokens: int, block_tokens: int, fresh: Iterator[int]
) -> tuple[int, ...]:
    """The prompt's block ids: those of the strand that it shares most with, then new ones."""
    shared, strand = max(
        ((common_prefix(last.text, text), last) for last in strands), key=lambda pair: pair[0], default=(0, None)
    )
    kept: tuple[int, ...] = ()
    if strand is not None and shared:
        tokens = strand.input_tokens if shared == len(strand.text) else shared * strand.input_tokens // len(strand.text)
        kept = strand.hash_ids[: min(tokens, input_tokens) // block_tokens]
    blocks = -(-input_tokens // block_tokens)
    hash_ids = kept + tuple(islice(fresh, blocks - len(kept)))
    if strand is not None and shared >= CONTINUES_RATIO * len(strand.text):
        strands.remove(strand)
    strands.append(_Strand(text, input_tokens, hash_ids))
    return hash_ids
