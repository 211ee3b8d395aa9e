"""The settings tree: every setting is declared here, once.

The rule of this module: file < environment (`TIDEGATE_SECTION__FIELD`) < flag. A tree is checked wholly before it is
used, and a wrong one says which field and why.
"""

from collections.abc import Sequence
from pathlib import Path as FilePath
from typing import Any, ClassVar, Literal, Self

import pydantic_settings
import yaml
from pydantic import Field, SecretStr, ValidationError, model_validator
from pydantic_settings import BaseSettings, InitSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

from gateway.core.types import Role
from gateway.settings_base import Ratio, Seconds, Section
from gateway.settings_routing import RoutingSettings


class ServerSettings(Section):
    """How the gateway listens."""

    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: int = Field(8080, ge=0, le=65535, description="Port to listen on; 0 takes a free one.")
    workers: int = Field(
        1, ge=1, le=64, description="Processes that serve together, each on one core; above 1 a parent keeps them."
    )
    max_body_bytes: int = Field(512 * 2**20, ge=1024, description="Largest request body; more is answered with 413.")
    drain_delay_s: float = Field(
        0.0, ge=0, description="After SIGTERM: how long to answer on with readiness off, so that balancers notice."
    )
    drain_s: Seconds = Field(30.0, description="After that: how long streams may finish.")
    data_plane: Literal["auto", "asgi"] = Field(
        "auto",
        description="auto splices the engines' routes into the client's connection and leaves all else to ASGI; "
        "asgi never splices.",
    )


class AdminSettings(Section):
    """The admin application, on its own port."""

    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: int | None = Field(8081, ge=0, le=65535, description="Port to listen on; 0 takes a free one, null is off.")


class KeySettings(Section):
    """One API key, known by its hash alone."""

    name: str = Field(min_length=1, description="Who uses it; shown in logs.")
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$", description="SHA-256 of the key, in hexadecimal.")
    scopes: tuple[Literal["data", "admin"], ...] = Field(("data",), description="What it opens.")


class AuthSettings(Section):
    """Who may call. Without keys the data routes are open, and the admin application is to whoever reaches it."""

    keys: tuple[KeySettings, ...] = Field((), description="API keys.")


class SidecarSettings(Section):
    """One decode engine beside the gateway; the prefill worker is named by each request."""

    header: str = Field("x-prefiller-host-port", description="Header with the prefill worker's host:port; stripped.")
    allow: tuple[str, ...] = Field(
        (), description="Hosts, CIDR ranges or host:port that the header may name; empty switches the mode off."
    )
    max_prefillers: int = Field(256, ge=1, description="Prefill workers remembered at once; the oldest is forgotten.")


class EndpointSettings(Section):
    """A model behind a graph that splits by itself: one URL per path."""

    id: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$", description="Its name in headers, metrics and logs.")
    models: tuple[str, ...] | None = Field(None, description="Model names; unset asks local_url's /v1/models.")
    local_url: str = Field(pattern=r"^http://[^\s?#]+$", description="Base URL of the path with local prefill.")
    remote_url: str = Field(pattern=r"^http://[^\s?#]+$", description="Base URL of the path with remote prefill.")


class WorkerSettings(Section):
    """One worker."""

    id: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$", description="Its name in headers, metrics and logs.")
    url: str = Field(pattern=r"^http://[^\s?#]+$", description="Base URL, without /v1.")
    role: Role = Field(Role.BOTH, description="prefill, decode or both.")
    models: tuple[str, ...] | None = Field(None, description="Model names; unset asks the worker's /v1/models.")
    kv_block_tokens: int | None = Field(None, ge=1, description="Tokens per KV block; unset reads its /metrics.")
    kv_total_blocks: int | None = Field(None, ge=1, description="KV blocks; unset reads its /metrics.")
    max_batched_tokens: int | None = Field(
        None, ge=1, description="vLLM's max_num_batched_tokens, for Dynamo's load policies."
    )
    caches_prefixes: bool = Field(True, description="False where the engine runs with --no-enable-prefix-caching.")


class FleetSettings(Section):
    """How workers are watched."""

    probe_interval_s: Seconds = Field(2.0, description="Between two health probes of a worker.")
    probe_timeout_s: Seconds = Field(5.0, description="A probe without an answer for so long has timed out.")
    scrape_interval_s: Seconds = Field(1.0, description="Between two scrapes of a worker's /metrics.")
    sample_max_age_s: Seconds = Field(10.0, description="An older scrape is not used.")


class HealthSettings(Section):
    """When a worker is ejected."""

    consecutive_failures: int = Field(5, ge=1, description="Failures in a row that eject a worker.")
    open_s: Seconds = Field(10.0, description="First ejection; doubled at each further one.")
    max_open_s: Seconds = Field(120.0, description="Longest ejection.")
    max_ejected_ratio: Ratio = Field(0.5, description="Share of a pool that may be ejected at once.")
    panic_ratio: Ratio = Field(0.34, description="Below this share of healthy workers the ejected ones serve too.")
    probe_failures: int = Field(3, ge=1, description="Refused or failed probes in a row that take a worker down.")
    probe_timeouts: int = Field(
        6, ge=1, description="As many without an answer in time do, while no request gets on there either."
    )


class SloClassSettings(Section):
    """A latency objective."""

    ttft_s: Seconds | None = Field(None, description="Time to first token.")
    tpot_s: Seconds | None = Field(None, description="Time per output token after the first.")


class DefaultSloSettings(SloClassSettings):
    """The objective of requests without a class; null takes a bound away."""

    ttft_s: Seconds | None = Field(2.0, description="Time to first token.")
    tpot_s: Seconds | None = Field(0.04, description="Time per output token after the first.")


class SloSettings(Section):
    """Objectives by class, and the class of each model. Headers of a request come on top."""

    default: DefaultSloSettings = DefaultSloSettings()
    classes: dict[str, SloClassSettings] = Field({}, description="Named classes, chosen by header x-slo-class.")
    models: dict[str, str] = Field({}, description="Which class a model uses.")
    objective: float = Field(0.99, gt=0, lt=1, description="Share of requests that should meet their target.")


class LegSettings(Section):
    """Limits of one leg toward a worker."""

    connect_timeout_s: Seconds = Field(5.0, description="For the TCP connection.")
    first_byte_timeout_s: Seconds = Field(
        600.0, description="From the dispatch to the answer's head; an unstreamed answer has it after its last token."
    )
    idle_timeout_s: Seconds | None = Field(120.0, description="Between two reads of an answer; unset is off.")
    max_connections: int = Field(1024, ge=1, description="Per worker.")


class UpstreamSettings(Section):
    """Limits toward workers, and retries."""

    prefill: LegSettings = LegSettings()
    decode: LegSettings = LegSettings()
    api_key: SecretStr | None = Field(
        None, description="Bearer key for the workers, in the place of the client's Authorization."
    )
    max_attempts: int = Field(3, ge=1, le=10, description="Tries of one request, the first included.")
    retry_ratio: Ratio = Field(0.2, description="Retries per request in the long run.")
    retry_reserve: int = Field(10, ge=0, description="Retries allowed at once beyond that.")


class TelemetrySettings(Section):
    """What is written down."""

    decision_log: FilePath | None = Field(None, description="JSONL file of decisions; unset keeps them in memory only.")
    decision_log_max_bytes: int = Field(256 * 2**20, ge=4096, description="Rotate above this size.")
    decision_log_files: int = Field(4, ge=1, description="Rotated files to keep.")
    recent_decisions: int = Field(
        10_000, ge=1, description="Decisions kept in memory for explanations, about 2 KB each."
    )
    journal: FilePath | None = Field(
        None, description="JSONL file of every call to the core, for replay; unset is off."
    )
    log_format: Literal["json", "console"] = Field("json", description="Log lines for machines or for people.")
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="Lowest level logged.")
    request_log: bool = Field(True, description="One log line a request.")


class SharedSettings(Section):
    """The Redis or Valkey server by which several gateways keep a conversation's turns together."""

    url: SecretStr | None = Field(
        None, description="redis://, rediss:// (TLS) or unix://; unset: each gateway remembers by itself."
    )
    prefix: str = Field("tidegate", pattern=r"^[^{}]+$", description="The same for all gateways of one fleet.")
    cluster: bool = Field(False, description="The URL is that of a node of a Redis or Valkey Cluster.")
    deadline_s: Seconds = Field(0.05, description="No request waits longer for an answer.")
    retry_s: Seconds = Field(1.0, description="Between two tries to get back to a server that was lost.")
    refresh_s: Seconds = Field(1.0, description="Between two reads of what all gateways have pinned.")
    flush_s: Seconds = Field(0.05, description="How long news may wait for others to go with it.")
    load_s: Seconds | None = Field(
        0.025,
        description="Between two times that gateways tell each other what they have in flight; null: they do not.",
    )
    batch_steps: int = Field(64, ge=1, description="Steps in one call; the server does nothing else meanwhile.")
    max_queued: int = Field(10_000, ge=1, description="Conversations whose news wait at most; older ones are dropped.")


class Settings(BaseSettings):
    """The whole tree."""

    model_config = SettingsConfigDict(
        env_prefix="TIDEGATE_", env_nested_delimiter="__", frozen=True, extra="forbid", validate_default=True
    )

    settings_file: ClassVar[dict[str, Any]] = {}

    server: ServerSettings = ServerSettings()
    admin: AdminSettings = AdminSettings()
    auth: AuthSettings = AuthSettings()
    workers: tuple[WorkerSettings, ...] = Field((), description="The fleet.")
    endpoints: tuple[EndpointSettings, ...] = Field((), description="Graphs that split by themselves.")
    sidecar: SidecarSettings = SidecarSettings()
    aliases: dict[str, str] = Field({}, description="Model names that clients may use, and what they stand for.")
    fleet: FleetSettings = FleetSettings()
    routing: RoutingSettings = RoutingSettings()
    health: HealthSettings = HealthSettings()
    slo: SloSettings = SloSettings()
    upstream: UpstreamSettings = UpstreamSettings()
    telemetry: TelemetrySettings = TelemetrySettings()
    shared: SharedSettings = SharedSettings()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 (the library's signature)
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Flag, then environment, then file."""
        return init_settings, env_settings, InitSettingsSource(settings_cls, cls.settings_file)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        ids = [*(worker.id for worker in self.workers), *(endpoint.id for endpoint in self.endpoints)]
        twice = sorted({worker_id for worker_id in ids if ids.count(worker_id) > 1})
        if twice:
            raise ValueError(f"workers share an id: {', '.join(twice)}")
        unknown = sorted(set(self.slo.models.values()) - set(self.slo.classes))
        if unknown:
            raise ValueError(f"slo.models refers to unknown classes: {', '.join(unknown)}")
        return self


class SettingsError(ValueError):
    """Settings that cannot be used, with one line per mistake."""


def load_settings(file: FilePath | None = None, *, overrides: Sequence[str] = ()) -> Settings:
    """Build the tree from a YAML file, the environment and `section.field=value` overrides.

    Raises:
        SettingsError: the file cannot be read, or a value is wrong.
    """
    tree: dict[str, Any] = {}
    for override in overrides:
        _put(tree, override)
    source = _file_source(file)
    try:
        loaded: type[Settings] = type("Settings", (Settings,), {"settings_file": source})
        return loaded(**tree)
    except ValidationError as error:
        lines = (f"{'.'.join(map(str, e['loc'])) or 'settings'}: {e['msg']}" for e in error.errors())
        raise SettingsError("\n".join(lines)) from error
    except pydantic_settings.SettingsError as error:
        raise SettingsError(f"environment: {error}") from error


def _file_source(file: FilePath | None) -> dict[str, Any]:
    if file is None:
        return {}
    try:
        tree = yaml.safe_load(file.read_bytes())
    except OSError as error:
        raise SettingsError(f"cannot read {file}: {error.strerror}") from error
    except yaml.YAMLError as error:
        raise SettingsError(f"{file} is not YAML: {error}") from error
    if not isinstance(tree, dict | None):
        raise SettingsError(f"{file} must hold a mapping of sections")
    return tree or {}


def _put(tree: dict[str, Any], override: str) -> None:
    key, equals, value = override.partition("=")
    *sections, field = key.split(".")
    if not equals or not field:
        raise SettingsError(f"--set takes section.field=value, not {override!r}")
    for section in sections:
        tree = tree.setdefault(section, {})
        if not isinstance(tree, dict):
            raise SettingsError(f"--set {override}: {section} is set to a value already")
    try:
        tree[field] = yaml.safe_load(value)
    except yaml.YAMLError as error:
        raise SettingsError(f"--set {override}: the value is not YAML: {error}") from error
