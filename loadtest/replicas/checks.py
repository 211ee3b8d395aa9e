"""What must hold of a run, and what else it shows.

The rule of this module: pure; records in, lines out. A request that failed is charged to the last fault that had begun
when it ended.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from loadtest.replicas.plan import LEAST_PINNED_RATIO, Plan
from loadtest.replicas.records import Fault, Run, Tried


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that must hold."""

    what: str
    measured: str
    required: str
    holds: bool

    def __str__(self) -> str:
        """On one line."""
        return f"{'ok  ' if self.holds else 'MISS'} {self.what}: {self.measured} ({self.required})"


def check_lines(found: Sequence[Check]) -> list[str]:
    """Each on one line, and how many hold."""
    return [*map(str, found), f"{sum(check.holds for check in found)}/{len(found)} checks hold"]


def checks(run: Run, plan: Plan) -> list[Check]:
    """All that must hold."""
    course = run.course
    settled_s = course.redis.back_s + plan.agree_s
    return [
        Check(
            what="sessions at once",
            measured=f"{run.peak_sessions:,}",
            required=f"at least {plan.sessions:,}",
            holds=run.peak_sessions >= plan.sessions,
        ),
        _pinned("later turns on their pinned worker", run, course.steady_from_s, course.replica.began_s),
        _none_failed("failed requests before any fault", _failed(run, -math.inf, course.replica.began_s)),
        _lost_with_replica(run),
        _pinned("later turns on it after a replica was killed", run, course.replica.gone_s, course.redis.began_s),
        _none_failed("failed requests while Redis hung and after", _failed_around(run, course.redis, course.decoder)),
        _pinned("later turns on it once Redis was back, empty", run, settled_s, course.decoder.began_s),
        *_rehomed(run),
        _pinned(
            "later turns of all others on it after that", run, course.decoder.gone_s, math.inf, but=course.decoder.name
        ),
        _unfinished(run),
    ]


def notes(run: Run) -> list[str]:
    """What else is worth knowing, with nothing required of it."""
    course = run.course
    spans = [
        ("steady", course.steady_from_s, course.replica.began_s),
        ("a replica killed", course.replica.began_s, course.redis.began_s),
        ("Redis away", course.redis.began_s, course.redis.back_s),
        ("Redis back", course.redis.back_s, course.decoder.began_s),
        ("a decode worker killed", course.decoder.began_s, math.inf),
    ]
    return [_note(name, _sent(run, since_s, until_s)) for name, since_s, until_s in spans]


def _note(name: str, tried: Sequence[Tried]) -> str:
    if not tried:
        return f"{name}: no requests"
    took_s = [one.ended_s - one.sent_s for one in tried if one.error is None]
    p50, p99 = (float(np.percentile(took_s, percent)) for percent in (50, 99)) if took_s else (math.nan, math.nan)
    span_s = max(one.sent_s for one in tried) - min(one.sent_s for one in tried)
    errors = Counter(one.error for one in tried if one.error is not None)
    told = "".join(f"; {count} x {error}" for error, count in errors.most_common(3))
    later = [one for one in tried if one.is_later and one.error is None]
    return (
        f"{name}: {len(tried):,} requests, {len(tried) / max(span_s, 1.0):.0f}/s, P50 {p50:.2f} s, P99 {p99:.2f} s, "
        f"{sum(one.is_at_home for one in later):,} of {len(later):,} later turns at home{told}"
    )


def _pinned(what: str, run: Run, since_s: float, until_s: float, *, but: str | None = None) -> Check:
    """Of turns that ended well; `but` leaves out those whose home is lost."""
    later = [one for one in _sent(run, since_s, until_s) if one.is_later and one.error is None and one.pinned_to != but]
    at_home = sum(one.is_at_home for one in later)
    ratio = at_home / len(later) if later else 0.0
    return Check(
        what=what,
        measured=f"{ratio:.2%}, {at_home:,} of {len(later):,}",
        required=f"at least {LEAST_PINNED_RATIO:.1%}",
        holds=ratio >= LEAST_PINNED_RATIO,
    )


def _none_failed(what: str, failed: Sequence[Tried]) -> Check:
    kinds = Counter(one.error for one in failed)
    told = "".join(f"; {count} x {error}" for error, count in kinds.most_common(3))
    return Check(what=what, measured=f"{len(failed)}{told}", required="0", holds=not failed)


def _lost_with_replica(run: Run) -> Check:
    fault = run.course.replica
    failed = _failed_around(run, fault, run.course.redis)
    streams = [one for one in run.tried if _is_open_on(one, fault)]
    beyond = [one for one in failed if not _is_open_on(one, fault)]
    what = f"requests lost beyond those open on {fault.name} as it was killed"
    return Check(
        what=what,
        measured=f"{len(beyond)}; {len(streams)} were open there, {len(failed) - len(beyond)} of them lost",
        required="0",
        holds=not beyond,
    )


def _is_open_on(one: Tried, fault: Fault) -> bool:
    return one.replica == fault.name and one.sent_s <= fault.gone_s and one.ended_s >= fault.began_s


def _rehomed(run: Run) -> list[Check]:
    """The conversations that lived on the decode worker when it was killed, and where their later turns went."""
    fault = run.course.decoder
    of_session: defaultdict[str, list[Tried]] = defaultdict(list)
    for one in run.tried:
        of_session[one.session].append(one)
    over = {one.session for one in run.played if one.ended_s <= fault.began_s}
    whole = {one.session for one in run.played if one.is_whole}
    lived = {name: tried for name, tried in of_session.items() if name not in over and _lives_on(tried, fault)}
    unfinished = [name for name in lived if name not in whole]
    after = {name: _homes_after(tried, fault) for name, tried in lived.items()}
    several = [homes for homes in after.values() if len(homes) > 1]
    apart = sum(len(set(homes)) > 1 for homes in several)
    cut = [one for one in _failed(run, fault.began_s, math.inf) if one.sent_s <= fault.gone_s]
    failed_later = len(_failed(run, fault.began_s, math.inf)) - len(cut)
    return [
        Check(
            what=f"conversations on {fault.name} that did not finish after it was killed",
            measured=f"{len(unfinished)} of {len(lived)}; {len(cut)} requests cut, {failed_later} failed later",
            required="0",
            holds=bool(lived) and not unfinished,
        ),
        Check(
            what="of those, such whose later turns went to several new homes",
            measured=f"{apart} of {len(several)} with two turns or more",
            required="0",
            holds=not apart,
        ),
    ]


def _lives_on(tried: Iterable[Tried], fault: Fault) -> bool:
    """Whether a session's last turn before the fault went there, or one that was under way."""
    before = [one for one in tried if one.sent_s <= fault.gone_s]
    if not before:
        return False
    last = before[-1]
    under_way = last.ended_s > fault.began_s
    return last.worker == fault.name or (under_way and last.pinned_to == fault.name)


def _homes_after(tried: Iterable[Tried], fault: Fault) -> list[str | None]:
    return [one.worker for one in tried if one.error is None and one.ended_s > fault.gone_s]


def _unfinished(run: Run) -> Check:
    given_up = [one for one in run.played if not one.is_whole]
    turns = sum(one.turns for one in run.played)
    return Check(
        what="sessions that did not finish",
        measured=f"{len(given_up)} of {len(run.played):,}, with {turns:,} turns",
        required="0",
        holds=bool(run.played) and not given_up,
    )


def _sent(run: Run, since_s: float, until_s: float) -> list[Tried]:
    return [one for one in run.tried if since_s <= one.sent_s < until_s]


def _failed(run: Run, since_s: float, until_s: float) -> list[Tried]:
    return [one for one in run.tried if one.error is not None and since_s <= one.ended_s < until_s]


def _failed_around(run: Run, fault: Fault, following: Fault) -> list[Tried]:
    return _failed(run, fault.began_s, following.began_s)
