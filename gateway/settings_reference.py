"""The settings reference, made from the tree.

The rule of this module: `python -m gateway.settings_reference > docs/reference/settings.md` writes the page; a test
holds the two equal.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final

from gateway.settings import Settings

Schema = Mapping[str, Any]
"""A JSON schema, or a part of one."""

INTRODUCTION: Final = """# Settings

<!-- Written by `python -m gateway.settings_reference`; edit `gateway/settings*.py` instead. -->

A YAML file holds the sections below as nested mappings. An environment variable wins over the file, and
`--set section.field=value` over both; lists and mappings are JSON in a variable. Whatever is unknown or wrong stops
the start with the name of the field. Unset means that the field is left out or null.
"""

_BOUNDS: Final = MappingProxyType({"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"})
_TYPES: Final = MappingProxyType(
    {"integer": "integer", "number": "number", "string": "text", "boolean": "true or false"}
)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where in the tree a section or a field stands."""

    key: str = ""
    has_variable: bool = True
    """False within lists and mappings, which one variable holds as a whole."""

    def field(self, name: str) -> "_Place":
        """The place of a field of this section."""
        return replace(self, key=f"{self.key}.{name}" if self.key else name)

    @property
    def variable(self) -> str:
        """The cell of the environment variable."""
        prefix = Settings.model_config.get("env_prefix", "")
        return f"`{prefix}{self.key.upper().replace('.', '__')}`" if self.has_variable else ""


def settings_reference() -> str:
    """The page, in Markdown."""
    tree = Settings.model_json_schema()
    return "\n".join((INTRODUCTION, *_section(tree, tree["$defs"], _Place()), ""))


def _section(schema: Schema, models: Schema, place: _Place) -> Iterator[str]:
    """A section's own table, then those of the sections within it."""
    rows: list[str] = []
    below: list[tuple[Schema, _Place]] = []
    for name, prop in schema["properties"].items():
        here = place.field(name)
        if "properties" in _resolve(prop, models):
            below.append((_resolve(prop, models), here))
            continue
        value = "required" if name in schema.get("required", ()) else _default(prop["default"])
        rows.append(_row(f"`{here.key}`", here.variable, _type(prop, models), value, prop["description"]))
        below += _elements(prop, models, here)
    if rows:
        yield from (f"## `{place.key}`\n", f"{schema['description']}\n") if place.key else ()
        yield from (_row("Key", "Variable", "Type", "Default", "Meaning"), _row(*["---"] * 5), *rows, "")
    for model, at in below:
        yield from _section(model, models, at)


def _elements(prop: Schema, models: Schema, place: _Place) -> Iterator[tuple[Schema, _Place]]:
    """The section that a list or mapping holds many of, if it does."""
    for inner, suffix in ((prop.get("items"), "[]"), (prop.get("additionalProperties"), ".<name>")):
        if isinstance(inner, Mapping) and "properties" in _resolve(inner, models):
            yield _resolve(inner, models), _Place(place.key + suffix, has_variable=False)


def _resolve(schema: Schema, models: Schema) -> Schema:
    reference = schema.get("$ref")
    resolved: Schema = schema if reference is None else models[reference.rpartition("/")[2]]
    return resolved


def _type(schema: Schema, models: Schema) -> str:
    schema = _resolve(schema, models)
    if "anyOf" in schema:
        return " or ".join(_type(each, models) for each in schema["anyOf"] if each != {"type": "null"})
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if schema.get("type") == "array":
        return f"list of {_type(schema['items'], models)}"
    if schema.get("type") == "object":
        inner = schema.get("additionalProperties")
        return f"mapping to {_type(inner, models)}" if inner else "sections"
    return _scalar(schema)


def _scalar(schema: Schema) -> str:
    name = "path" if schema.get("format") == "path" else _TYPES[schema["type"]]
    bounds = [f"{sign} {schema[bound]}" for bound, sign in _BOUNDS.items() if bound in schema]
    matching = [f"matching `{schema['pattern']}`"] if "pattern" in schema else []
    return " ".join((name, ", ".join((*bounds, *matching)))).strip()


def _default(value: object) -> str:
    return "unset" if value is None else f"`{json.dumps(value)}`"


def _row(*cells: str) -> str:
    escaped = (cell.replace("|", r"\|") for cell in cells)
    return f"| {' | '.join(escaped)} |"


if __name__ == "__main__":
    sys.stdout.write(settings_reference())
