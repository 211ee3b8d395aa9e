"""What request headers tell the router of the latency objective.

The rule of this module: every hint is optional; a bound that is no positive finite number is refused by the
header's name, because silently dropping an objective would be worse.
"""

from collections.abc import Mapping, Sequence
from math import inf, nan

from gateway.core.record import record
from gateway.wire.errors import ApiError, bad_request

SLO_CLASS_HEADERS = (b"x-slo-class",)
TTFT_HEADERS = (b"x-slo-ttft-ms", b"x-llm-d-slo-ttft-ms")
TPOT_HEADERS = (b"x-slo-tpot-ms", b"x-llm-d-slo-tpot-ms")


_NAMES = frozenset({*SLO_CLASS_HEADERS, *TTFT_HEADERS, *TPOT_HEADERS})


@record
class Hints:
    """The hints of one request."""

    slo_class: str | None = None
    slo_ttft_s: float | None = None
    slo_tpot_s: float | None = None


NO_HINTS = Hints()


def read_hints(headers: Sequence[tuple[bytes, bytes]]) -> Hints | ApiError:
    """Read the hints; of alternatives the first present header counts, of a repeated one its first value."""
    by_name = dict(reversed(headers))
    if _NAMES.isdisjoint(by_name):
        return NO_HINTS
    ttft_s = _seconds(by_name, TTFT_HEADERS)
    if isinstance(ttft_s, ApiError):
        return ttft_s
    tpot_s = _seconds(by_name, TPOT_HEADERS)
    if isinstance(tpot_s, ApiError):
        return tpot_s
    return Hints(
        slo_class=_text(by_name, SLO_CLASS_HEADERS),
        slo_ttft_s=ttft_s,
        slo_tpot_s=tpot_s,
    )


def _text(by_name: Mapping[bytes, bytes], names: Sequence[bytes]) -> str | None:
    """The value of the first of `names` that is present and not blank."""
    for name in names:
        if name in by_name and (text := by_name[name].decode("latin-1").strip()):
            return text
    return None


def _seconds(by_name: Mapping[bytes, bytes], names: Sequence[bytes]) -> float | ApiError | None:
    """The first of `names` that is present, read as milliseconds."""
    for name in names:
        if name in by_name:
            return _parse_ms(name.decode("latin-1"), by_name[name].decode("latin-1").strip())
    return None


def _parse_ms(name: str, text: str) -> float | ApiError:
    try:
        # Python would take digit groups (1_000) too.
        seconds = (nan if "_" in text else float(text)) / 1000
    except ValueError:
        seconds = nan
    if 0 < seconds < inf:
        return seconds
    return bad_request(
        f"Invalid header '{name}': expected a positive number of milliseconds, got '{text[:64]}'.", param=name
    )
