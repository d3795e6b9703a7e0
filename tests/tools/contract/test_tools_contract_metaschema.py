"""The check whether a schema is valid: a quick one of ours, and the one of the library."""

import subprocess
import sys
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.tools.contract.schemas.metaschema import find_invalid, is_plainly_valid

TYPES = ("array", "boolean", "integer", "null", "number", "object", "string")
KEYWORDS = (
    "$anchor", "$comment", "$defs", "$id", "$ref", "$schema", "$vocabulary", "additionalProperties", "allOf",
    "anyOf", "const", "contains", "default", "definitions", "dependentRequired", "deprecated", "description",
    "enum", "examples", "exclusiveMaximum", "exclusiveMinimum", "format", "if", "items", "maxItems",
    "maxLength", "maximum", "minContains", "minItems", "minLength", "minProperties", "minimum", "multipleOf",
    "not", "oneOf", "pattern", "patternProperties", "prefixItems", "properties", "propertyNames", "readOnly",
    "required", "title", "type", "unevaluatedProperties", "uniqueItems", "unknown", "writeOnly",
)  # fmt: skip

VALUES: tuple[Any, ...] = (
    None, True, 1, -1, 0, 1.0, 1.5, 2**70, "a", "string", [], [1], ["a"], ["a", "a"], ["null", "string"],
    ["null", "null"], [{}], [True], [{"type": "x"}], {}, {"a": {}}, {"a": 1}, {"a": {"type": "x"}},
    {"type": "x"}, {"type": "null"}, [["a"]], [{}, {}],
)  # fmt: skip

words = st.sampled_from([*TYPES, "a", "(", "", "é", "#/$defs/a", "date"])
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | words


def nested(children: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    """A strategy for lists, open objects, and objects made of keywords."""
    return (
        st.lists(children, max_size=3)
        | st.dictionaries(st.sampled_from(["a", "b", "type"]), children, max_size=2)
        | st.dictionaries(st.sampled_from(KEYWORDS), children, max_size=3)
    )


@given(st.dictionaries(st.sampled_from(KEYWORDS), st.recursive(scalars, nested, max_leaves=8), max_size=4))
def test_what_is_plainly_valid_is_valid(schema: dict[str, object]) -> None:
    """Rule T8: the quick check accepts no schema that the metaschema of draft 2020-12 refuses."""
    if is_plainly_valid(schema):
        jsonschema_rs.meta.validate(schema)


@pytest.mark.parametrize("keyword", KEYWORDS)
def test_each_keyword_is_judged_as_the_library_does(keyword: str) -> None:
    """Rule T8: ``find_invalid`` agrees with the library on every keyword; the quick check is not laxer."""
    for value in VALUES:
        schema = {"type": "object", "properties": {"a": {keyword: value}}}
        valid = jsonschema_rs.meta.is_valid(schema)
        assert valid or not is_plainly_valid(schema), value
        assert (find_invalid(schema) is None) == valid, value


def test_the_path_of_a_fault_is_said() -> None:
    """Rule T8: ``find_invalid`` returns the path of the invalid part of a schema."""
    assert find_invalid({"properties": {"a": {"anyOf": []}}}) == "properties.a.anyOf"
    assert find_invalid({"$schema": 1}) == "$schema"


def test_derived_schemas_do_not_load_the_library() -> None:
    """The proxy does not import jsonschema_rs if all schemas are derived from models and signatures."""
    asked = """
import sys, datetime
from proxy.tools import Redaction, tool
from proxy.tools.providers.function import FunctionProvider

@tool(effect="read_only", redaction=Redaction(output=()))
async def stay(city: str, since: datetime.date, nights: int | None = None) -> dict[str, str]:
    "Book it."
    return {}

import asyncio
spec, = asyncio.run(FunctionProvider("own", [stay]).list_tools())
spec.validate({"city": "Bonn", "since": "2030-01-01"})
print("jsonschema_rs" in sys.modules)
"""
    said = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    assert said.stdout == "False\n"
