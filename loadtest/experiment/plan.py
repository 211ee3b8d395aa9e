"""The experiment file: what is varied, checked wholly before anything runs.

The rule of this module: a plan is data; whatever is wrong with it is a `PlanError` with one line per mistake, each of
which begins with the field's place in the file. Paths in a plan are as seen from the working directory.
"""

from collections.abc import Hashable
from pathlib import Path
from typing import Annotated, Any, Self

import yaml
from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, field_validator, model_validator

from gateway.core.types import Role, SloTarget
from gateway.policies import build_policy
from gateway.settings import Settings, SettingsError
from gateway.settings_base import Section
from loadtest.engine.presets import ENGINES, UnknownEngine
from loadtest.fleet.pools import parse_pools
from loadtest.report.slo import parse_slo
from loadtest.traces.spec import parse_spec
from loadtest.traces.types import TraceError

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]
"""Stands in labels and file names."""
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class PlanError(ValueError):
    """An experiment file that cannot be used."""


class WorkloadPlan(Section):
    """What is asked of a fleet."""

    trace: str = Field(description="As loadtest.traces.spec says.")
    requests: int | None = Field(None, ge=1, description="The first so many; unset is all of them.")

    @field_validator("trace")
    @classmethod
    def _parses(cls, trace: str) -> str:
        try:
            parse_spec(trace)
        except TraceError as error:
            raise ValueError(str(error)) from error
        return trace


class GroupPlan(Section):
    """Equal workers of a fleet."""

    role: Role = Field(description="prefill, decode or both.")
    engine: str = Field(description="An engine preset.")
    count: int = Field(1, ge=1, description="How many.")

    @field_validator("engine")
    @classmethod
    def _exists(cls, engine: str) -> str:
        return _known_engine(engine)


class FleetPlan(Section):
    """Either pools of one engine, or groups of workers whose engines may differ."""

    pools: str | None = Field(None, description="2P2D, or 4A for aggregated workers; with engine.")
    engine: str | None = Field(None, description="An engine preset.")
    groups: tuple[GroupPlan, ...] = Field((), description="Instead of pools and engine.")

    @field_validator("pools")
    @classmethod
    def _parses(cls, pools: str | None) -> str | None:
        if pools is not None:
            parse_pools(pools)
        return pools

    @field_validator("engine")
    @classmethod
    def _exists(cls, engine: str | None) -> str | None:
        return None if engine is None else _known_engine(engine)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (self.pools is None) != (self.engine is None) or (self.pools is None) != bool(self.groups):
            raise ValueError("give either pools and engine, or groups")
        workers = self.workers()
        if all(role is Role.PREFILL for role, _ in workers):
            raise ValueError("no worker could decode")
        layouts = {(ENGINES[engine].kv_bytes_per_token, ENGINES[engine].block_tokens) for _, engine in workers}
        if len(layouts) > 1:
            raise ValueError("the engines of a fleet must agree on the KV cache's bytes per token, as KV moves there")
        return self

    def workers(self) -> tuple[tuple[Role, str], ...]:
        """Role and engine of every worker, in the order of the fleet."""
        if self.pools is not None and self.engine is not None:
            return tuple((role, self.engine) for _, role in parse_pools(self.pools).roles())
        return tuple((group.role, group.engine) for group in self.groups for _ in range(group.count))


def _routing(value: object) -> object:
    """The routing settings that a name or a bundle stands for."""
    if isinstance(value, str):
        return {"policy": value}
    if isinstance(value, dict) and "bundle" in value:
        return {"policy": "learned", **value}
    return value


RoutingPlan = Annotated[dict[str, Any], BeforeValidator(_routing)]
"""The gateway's `routing` settings; a policy's name and `bundle: DIRECTORY` are short for them."""


def _slo_text(text: str) -> str:
    parse_slo(text)
    return text


SloText = Annotated[str, AfterValidator(_slo_text)]


def _counted(value: object) -> object:
    """`seeds: 5` is 0 to 4."""
    if isinstance(value, int) and not isinstance(value, bool):
        if value < 1:
            raise ValueError("at least one seed is needed")
        return tuple(range(value))
    return value


class Plan(Section):
    """One experiment: the product of workloads, fleets, loads, SLOs, policies and seeds."""

    name: Name
    workloads: dict[Name, WorkloadPlan] = Field(min_length=1)
    fleets: dict[Name, FleetPlan] = Field(min_length=1)
    policies: dict[Name, RoutingPlan] = Field(min_length=1)
    loads: tuple[Positive, ...] = Field((1.0,), description="Multiples of the traces' rates.")
    slos: dict[Name, SloText] = Field({"default": "ttft=2s,tpot=40ms"}, min_length=1)
    seeds: Annotated[tuple[int, ...], BeforeValidator(_counted)] = (0,)
    until_s: Positive | None = Field(None, description="Virtual seconds after which a run is stopped.")
    scrape_interval_s: Positive = Field(1.0, description="Between two scrapes of the workers by the gateway.")
    baseline: str | None = Field(None, description="The policy that others are compared with; unset is the first.")
    keep_records: bool = Field(True, description="Whether each run's requests are written too.")

    @field_validator("loads", "seeds")
    @classmethod
    def _distinct(cls, values: tuple[float, ...]) -> tuple[float, ...]:
        if not values:
            raise ValueError("at least one value is needed")
        if len(set(values)) < len(values):
            raise ValueError("values must differ from one another")
        return values

    @model_validator(mode="after")
    def _known_baseline(self) -> Self:
        if self.baseline is not None and self.baseline not in self.policies:
            raise ValueError(f"baseline: there is no policy {self.baseline!r}")
        return self

    @property
    def compared_with(self) -> str:
        """The baseline's name."""
        return self.baseline or next(iter(self.policies))

    def slo(self, name: str) -> SloTarget:
        """A named SLO's bounds."""
        bounds = parse_slo(self.slos[name])
        return SloTarget(name=name, ttft_s=bounds.ttft_s, tpot_s=bounds.tpot_s)


def read_plan(file: Path) -> Plan:
    """Read and check an experiment file, the settings of its policies included; no trace is read.

    Raises:
        PlanError: the file cannot be read, or something in it is wrong.
    """
    try:
        tree = yaml.load(file.read_bytes(), _UniqueKeys)  # noqa: S506 (a safe loader)
    except OSError as error:
        raise PlanError(f"cannot read {file}: {error.strerror}") from error
    except yaml.YAMLError as error:
        raise PlanError(f"{file} is not YAML: {error}") from error
    return parse_plan(tree)


def parse_plan(tree: object) -> Plan:
    """The plan that a file's content describes; `PlanError` where something in it is wrong."""
    try:
        plan = Plan.model_validate(tree)
    except ValidationError as error:
        raise PlanError(_lines(error)) from error
    mistakes = [line for name in plan.policies for line in _policy_mistakes(name, plan.policies[name])]
    if mistakes:
        raise PlanError("\n".join(mistakes))
    return plan


def policy_settings(routing: dict[str, Any]) -> Settings:
    """The gateway's settings with these of routing; neither a file nor the environment has a say.

    Raises:
        ValidationError: a setting is unknown or wrong.
    """
    return Settings.model_validate({"routing": routing})


def _policy_mistakes(name: str, routing: dict[str, Any]) -> list[str]:
    try:
        build_policy(policy_settings(routing))
    except ValidationError as error:
        return _lines(error, before=("policies", name), skip=1).splitlines()
    except SettingsError as error:
        return [f"policies.{name}: {error}"]
    return []


def _lines(error: ValidationError, *, before: tuple[str, ...] = (), skip: int = 0) -> str:
    """One line per mistake, the field first; `skip` leaves leading parts of its place out."""
    lines = []
    for each in error.errors(include_url=False):
        place = ".".join([*before, *map(str, each["loc"][skip:])]) or "experiment"
        lines.append(f"{place}: {each['msg'].removeprefix('Value error, ')}")
    return "\n".join(lines)


def _known_engine(name: str) -> str:
    if name not in ENGINES:
        raise ValueError(str(UnknownEngine(name)))
    return name


class _UniqueKeys(yaml.SafeLoader):
    """A key that comes twice is a mistake: the first would be lost without a word."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for place, key in enumerate(keys):
            if key in keys[:place]:
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {key!r} comes twice", node.value[place][0].start_mark
                )
        return super().construct_mapping(node, deep)
