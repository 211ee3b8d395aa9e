"""Replaying a journal: the same calls to a fresh core must give the same bytes.

The rule of this module: it hosts the core without a clock, a socket or a worker, as a simulator does. Whatever differs
is a hidden input of the core, and a bug.
"""

from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Annotated

import typer

from gateway.core.events import Event
from gateway.core.policy import Policy
from gateway.core.router import Router
from gateway.core.types import DecisionId, RequestFacts, WorkerId
from gateway.core.waiting import Ticket
from gateway.policies import build_policy, described_policy
from gateway.settings import SettingsError, load_settings
from gateway.wire.journal import CallName, JournalCall, JournalError, canonical, read_pairs

SHOWN_MISMATCHES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch:
    """One call whose answer differs."""

    call: int
    """Its number in the journal, from 1."""
    name: str
    recorded: bytes
    replayed: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayReport:
    """What a replay found."""

    calls: int
    decisions: int
    mismatches: list[Mismatch]


def replay(journal: Path, policy: Policy | None = None) -> ReplayReport:
    """Put every call of a journal to a fresh router with `policy`, else its own, and compare the answers.

    Raises:
        JournalError: a line is no call, or the journal does not begin with its router.
        SettingsError: the journal's policy cannot be built any more.
    """
    calls = decisions = 0
    mismatches: list[Mismatch] = []
    with journal.open("rb") as lines:
        pairs = read_pairs(lines)
        router = _open(next(pairs, None), policy)
        for calls, (call, recorded) in enumerate(pairs, start=1):
            decisions += call.name == CallName.SUBMIT
            replayed = canonical(_put(router, call))
            if replayed != recorded:
                mismatches.append(Mismatch(call=calls, name=call.name, recorded=recorded, replayed=replayed))
    return ReplayReport(calls=calls, decisions=decisions, mismatches=mismatches)


def _open(first: tuple[JournalCall, bytes] | None, policy: Policy | None) -> Router:
    if first is None or first[0].name != CallName.OPEN:
        raise JournalError("the journal does not begin with its router")
    details = first[0].details
    seed, instance = details.get("seed"), details.get("instance")
    if not isinstance(seed, int) or not isinstance(instance, str):
        raise JournalError("the journal's first line names no seed or instance")
    policy = policy or described_policy(str(details.get("policy")))
    return Router(policy, rng=Random(seed), instance=instance)  # noqa: S311 (not a secret)


def _put(router: Router, call: JournalCall) -> object:
    details, payload = call.details, call.payload
    match call.name:
        case CallName.SUBMIT if isinstance(payload, RequestFacts):
            exclude, attempt = details["exclude"], details["attempt"]
            assert isinstance(exclude, list)
            assert isinstance(attempt, int)
            excluded = frozenset(map(WorkerId, exclude))
            return router.submit(payload, call.now_s, exclude=excluded, attempt=attempt)
        case CallName.RELEASE:
            return router.release(call.now_s)
        case CallName.GIVE_UP:
            ticket = details["ticket"]
            assert isinstance(ticket, int)
            router.give_up(Ticket(ticket))
        case CallName.ADOPT:
            router.adopt(described_policy(str(details["policy"])))
        case CallName.ABORT:
            blame = details["blame"]
            blamed = WorkerId(blame) if isinstance(blame, str) else None
            router.abort(DecisionId(str(details["decision_id"])), call.now_s, blame=blamed)
        case CallName.OBSERVE if isinstance(payload, Event):
            router.observe(payload)
        case CallName.TICK:
            router.tick(call.now_s)
        case _:
            raise JournalError(f"unknown call {call.name!r}")
    return None


def replay_command(
    *,
    journal: Annotated[Path, typer.Option(help="A file that telemetry.journal wrote.")],
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="Settings of another policy; unset is the recorded one.")
    ] = None,
    override: Annotated[list[str] | None, typer.Option("--set", help="Override: section.field=value.")] = None,
) -> None:
    """Put a recorded gateway's calls to a fresh decision core, and check that it decides the same, byte for byte."""
    try:
        other = build_policy(load_settings(config, overrides=override or [])) if config or override else None
        report = replay(journal, other)
    except (SettingsError, JournalError, OSError) as error:
        raise typer.BadParameter(str(error)) from error
    for mismatch in report.mismatches[:SHOWN_MISMATCHES]:
        typer.echo(f"call {mismatch.call} ({mismatch.name}):")
        typer.echo(f"  recorded {mismatch.recorded.decode()}\n  replayed {mismatch.replayed.decode()}")
    typer.echo(f"{report.calls} calls, {report.decisions} decisions, {len(report.mismatches)} differ")
    if report.mismatches:
        raise typer.Exit(1)
