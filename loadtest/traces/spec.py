"""The names of traces, as commands take them.

A spec is one trace, or several with ` + ` between them, which then run at the same time:

    KIND:NAME[?OPTION=VALUE[&OPTION=VALUE...]]

Open-loop kinds:

    mooncake:PATH     Mooncake's JSON lines. `jitter=0` keeps the file's timestamps, which are 3 s ticks of ten
                      requests; without it they are spread.
    azure:PATH        Azure's CSV of timestamps and lengths; no prefixes.
    servegen:PATH     ServeGen's client pool, from which arrivals are drawn: `from` and `to` (s of the day; 600 s from
                      0), `rate` (requests/s in that window; unset is the recorded one).
    synthetic:NAME    mooncake, azure-conv, azure-code or tool-agent: generators fitted to those traces.

Kinds of sessions in closed loop. None of them says when sessions begin: they begin as a Poisson process of 0.1/s, which
`rate` changes:

    claude:PATH       Claude Code sessions with their sub-agents. `block` (tokens, a multiple of 64) joins blocks,
                      `shared_head=1` lets sessions of one model share the blocks of their tools and system prompt,
                      `agents=0` leaves sub-agents out.
    lmcache:PATH      LMCache's agent calls (miniswe, taubench). `block` (16).
    taubench:PATH     tau-bench conversations. No times are recorded: `tool` (1) and `user` (20) are the mean seconds
                      that tools and users take, drawn from an exponential distribution. `block` (16).
    swe:PATH          SWE-agent trajectories, likewise: `tool`, `block`.
    synthetic:NAME    claude-code or miniswe: generators fitted to those.

All kinds take, in this order of effect:

    context=F         scales prompts, and what they share, by a factor of at most 1, but not outputs.
    horizon=SECONDS   draws a longer (or shorter) workload from this one, which keeps its rate over time and its groups
                      of common prefixes.
    rate=R            mean first arrivals per second (requests, or sessions), met exactly by stretching time.
    phases=D:S,...    for D seconds time runs S times faster, then the next phase; `D:S-E` is a ramp from S to E. The
                      last phase goes on.

The rule of this module: it reads names and options, never a file; what is wrong with them is a `TraceError`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from loadtest.traces.types import TraceError

TRACE_HELP = (
    "KIND:NAME, with options as in ?rate=2&horizon=60; several joined by ' + '. Open loop: mooncake:PATH, azure:PATH, "
    "servegen:PATH, synthetic:NAME (mooncake, azure-conv, azure-code, tool-agent). Sessions: claude:PATH, "
    "lmcache:PATH, taubench:PATH, swe:PATH, synthetic:NAME (claude-code, miniswe). Options of all: context=F, rate=R, "
    "horizon=S, phases=D:S,D:S-E,..."
)
"""Help text for options that take a spec; no word is too long for a narrow terminal's column."""

OFF = ("0", "no", "false")
ON = ("1", "yes", "true")


@dataclass(slots=True)
class Options:
    """The options of one spec; each is taken once, and `done` complains of those that nobody took."""

    spec: str
    values: dict[str, str]

    def number(self, name: str, default: float, *, least: float = 0.0) -> float:
        """A number of at least `least`; the default where the option is not given."""
        found = self.optional_number(name, least=least)
        return default if found is None else found

    def optional_number(self, name: str, *, least: float = 0.0) -> float | None:
        """A number of at least `least`, if the option is given."""
        text = self.values.pop(name, None)
        if text is None:
            return None
        try:
            found = float(text)
        except ValueError as error:
            raise TraceError(f"{self.spec}: {name} must be a number, got {text!r}") from error
        if not least <= found < float("inf"):
            raise TraceError(f"{self.spec}: {name} must be at least {least:g}, got {text}")
        return found

    def positive(self, name: str) -> float | None:
        """A number above 0, if the option is given."""
        found = self.optional_number(name)
        if found == 0:
            raise TraceError(f"{self.spec}: {name} must be above 0")
        return found

    def whole(self, name: str, default: int) -> int:
        """A whole number of at least 1."""
        found = self.number(name, default, least=1)
        if found != int(found):
            raise TraceError(f"{self.spec}: {name} must be a whole number, got {found:g}")
        return int(found)

    def flag(self, name: str, *, default: bool) -> bool:
        """1, yes or true; 0, no or false."""
        text = self.values.pop(name, None)
        if text is None:
            return default
        if text not in ON + OFF:
            raise TraceError(f"{self.spec}: {name} must be 1 or 0, got {text!r}")
        return text in ON

    def text(self, name: str) -> str | None:
        """The option as written, if it is given."""
        return self.values.pop(name, None)

    def done(self) -> None:
        """Raises `TraceError` where an option is left that this kind of trace does not have."""
        if self.values:
            raise TraceError(f"{self.spec}: unknown option {min(self.values)!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceSpec:
    """One trace of a spec."""

    text: str
    kind: str
    name: str
    """A path or a generator's name."""
    options: Mapping[str, str] = field(default_factory=dict)


def parse_spec(text: str) -> list[TraceSpec]:
    """The traces that a spec names.

    Raises:
        TraceError: a part has no `KIND:`, or an option is no `NAME=VALUE` or comes twice.
    """
    return [_parse_one(part.strip()) for part in text.split(" + ")]


def _parse_one(text: str) -> TraceSpec:
    named, _, query = text.partition("?")
    kind, _, name = named.partition(":")
    if not kind or not name:
        raise TraceError(f"unknown trace {text!r}: use {TRACE_HELP}")
    options: dict[str, str] = {}
    for pair in query.split("&") if query else ():
        key, equals, value = pair.partition("=")
        if not equals or not key or key in options:
            raise TraceError(f"{text}: {pair!r} is no option, or comes twice: use ?NAME=VALUE&NAME=VALUE")
        options[key] = value
    return TraceSpec(text=text, kind=kind, name=name, options=options)
