"""How a load is put: where it goes, as which model, and how far it may go.

The rule of this module: data only; everything that a run depends on is here or in its trace.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from gateway.core.types import Endpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """One run's options."""

    url: str
    """Base URL of an OpenAI API, such as `http://127.0.0.1:8000/v1`."""
    model: str
    run_id: str
    """Makes this run's request ids its own."""
    endpoint: Endpoint = Endpoint.CHAT
    seed: int = 0
    """Of the prompts' text: another seed gives prompts that no cache has seen."""
    speed: float = 1.0
    """Arrivals come this many times faster than the trace says."""
    timeout_s: float = 600.0
    """Longest time of one request, connecting included; with it every run has an end."""
    max_duration_s: float | None = None
    """When to stop the run as a whole; requests under way are cancelled then."""
    warm_up: int = 0
    """Small requests sent one after another before the clock starts; they leave no records."""
    api_key: str | None = None
    session_header: str | None = None
    """Header that carries the session of requests that have one."""
    body_members: Mapping[str, object] = field(default_factory=dict)
    """Members of every request's JSON beside those that the load needs, which these do not replace."""
