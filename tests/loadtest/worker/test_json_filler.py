"""Documents that fit their schema, whatever it is."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.worker.forms import AnswerForm
from loadtest.worker.json_filler import document

KEYS = st.integers(0, 2**64 - 1)


def bounded(low_word: str, high_word: str, low: int, span: int) -> dict[str, int]:
    return {low_word: low, high_word: low + span}


LEAVES = st.one_of(
    st.builds(
        lambda low, span: {"type": "integer"} | bounded("minimum", "maximum", low, span),
        st.integers(-9, 9),
        st.integers(0, 9),
    ),
    st.builds(
        lambda low, span: {"type": "string"} | bounded("minLength", "maxLength", low, span),
        st.integers(0, 9),
        st.integers(0, 9),
    ),
    st.builds(lambda values: {"enum": values}, st.lists(st.text(max_size=4), min_size=1, max_size=3)),
    st.sampled_from([{"type": "string"}, {"type": "number"}, {"type": "boolean"}, {"type": "null"}, {"const": "é"}]),
    st.sampled_from([{"type": ["null", "integer"]}, {"anyOf": [{"type": "boolean"}, {"type": "null"}]}]),
)
SCHEMAS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.builds(
            lambda properties: {"type": "object", "properties": properties, "required": [*properties]},
            st.dictionaries(st.text(min_size=1, max_size=4), inner, max_size=3),
        ),
        st.builds(lambda items, low: {"type": "array", "items": items, "minItems": low}, inner, st.integers(0, 3)),
    ),
    max_leaves=8,
)


def fits(schema: dict[str, Any], value: Any) -> bool:
    """A second, independent reading of the part of JSON Schema that is used here."""
    if "anyOf" in schema:
        return any(fits(way, value) for way in schema["anyOf"])
    if "enum" in schema or "const" in schema:
        return value in schema.get("enum", [schema.get("const")])
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    return any(_fits_kind(kind, schema, value) for kind in kinds)


def _fits_kind(kind: str, schema: dict[str, Any], value: Any) -> bool:
    match kind, value:
        case ("null", None) | ("boolean", bool()):
            return True
        case ("integer", int()) | ("number", int() | float()):
            return not isinstance(value, bool) and schema.get("minimum", value) <= value <= schema.get("maximum", value)
        case "string", str():
            return schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", len(value))
        case "array", list():
            return len(value) >= schema.get("minItems", 0) and all(fits(schema["items"], each) for each in value)
        case "object", dict():
            properties = schema.get("properties", {})
            wanted = all(name in value for name in schema.get("required", ()))
            return wanted and all(fits(properties[name], each) for name, each in value.items() if name in properties)
        case _:
            return False


@given(schema=SCHEMAS, key=KEYS, characters=st.integers(0, 400))
def test_a_document_fits_its_schema_at_any_length(schema: dict[str, Any], key: int, characters: int) -> None:
    text = document(schema, key, characters=characters)
    assert text.isascii()
    assert fits(schema, json.loads(text))


@given(key=KEYS, characters=st.integers(40, 4000))
def test_a_free_string_makes_the_document_as_long_as_asked(key: int, characters: int) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "maxLength": 9}, "b": {"type": "string"}}}
    assert len(document(schema, key, characters=characters)) == characters


@pytest.mark.parametrize("schema", [{}, {"type": "object"}, {"type": "object", "additionalProperties": False}])
def test_a_schema_that_says_nothing_is_an_object(schema: dict[str, Any]) -> None:
    assert isinstance(json.loads(document(schema, 1, characters=50)), dict)


def test_a_schema_that_names_itself_comes_to_an_end() -> None:
    node = {"type": "object", "properties": {"value": {"type": "integer"}, "next": {"$ref": "#/$defs/node"}}}
    schema = {"$ref": "#/$defs/node", "$defs": {"node": node | {"required": ["value"]}}}
    found = json.loads(document(schema, 1, characters=10))
    assert set(found) == {"value", "next"}
    assert json.loads(document({"$ref": "#"}, 1, characters=10)) is None


@given(key=KEYS, limit=st.integers(60, 500))
def test_a_script_that_can_be_whole_is_whole_within_its_limit(key: int, limit: int) -> None:
    form = AnswerForm(schema={"type": "object", "properties": {"city": {"type": "string"}}}, tool="look")
    script = form.script(key, limit_tokens=limit)
    assert len(script.text) <= 4 * (limit - 2)
    assert list(json.loads(script.arguments)) == ["city"]
    assert json.loads(script.text.removeprefix(b"<tool_call>\n").removesuffix(b"\n</tool_call>"))["name"] == "look"
