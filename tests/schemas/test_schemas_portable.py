"""Schemas of tools are rewritten to mean the same to more providers; the rest is named."""

import json
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.base.events import ToolDefinition
from proxy.schemas.portable import REFUSED_BY, follow, repaired, unportable
from proxy.tools.contract.spec import ToolEffect, ToolSpec

LEAVES: st.SearchStrategy[dict[str, Any]] = st.sampled_from(
    [
        {"type": "string"},
        {"type": "array"},
        {"type": ["array", "null"]},
        {"type": "object"},
        {"enum": [1, "a"]},
        {"$ref": "#/properties/a"},
        {"$ref": "#/properties/b/anyOf/1"},
        {"$ref": "#/$defs/x%20y"},
        {"$ref": "#/$defs/plain"},
        {"$ref": "#"},
    ]
)
PARTS: st.SearchStrategy[dict[str, Any]] = st.recursive(
    LEAVES,
    lambda below: (
        st.tuples(below, below).map(lambda both: {"anyOf": list(both)})
        | below.map(lambda part: {"type": "array", "items": part})
        | below.map(lambda part: {"type": "object", "properties": {"a": part}})
    ),
    max_leaves=6,
)
WHOLE = st.tuples(PARTS, PARTS, PARTS, PARTS).map(
    lambda parts: {
        "type": "object",
        "properties": {"a": parts[0], "b": {"anyOf": [parts[1], parts[2]]}},
        "$defs": {"x y": {"type": "string"}, "plain": parts[3], "part1": {}},
    }
)
VALUES = st.recursive(
    st.none() | st.integers(0, 2) | st.sampled_from(["a", "b"]),
    lambda below: st.lists(below, max_size=2) | st.dictionaries(st.sampled_from("abc"), below, max_size=2),
    max_leaves=5,
)


@given(schema=WHOLE, value=st.fixed_dictionaries({}, optional={"a": VALUES, "b": VALUES}))
def test_a_repair_keeps_the_meaning(schema: dict[str, Any], value: Any) -> None:
    """Any value fits a schema exactly if it fits the repaired one, which needs no second repair."""
    made: Any = json.loads(json.dumps(repaired(schema)))
    assert repaired(made) is made
    assert "#/properties" not in json.dumps(made)
    if not loops(schema):
        fits = jsonschema_rs.Draft202012Validator(schema).is_valid(value)
        assert jsonschema_rs.Draft202012Validator(dict(made)).is_valid(value) is fits


def loops(schema: dict[str, Any]) -> bool:
    """Whether references lead back to where they came from without a step into a value."""

    def back(node: dict[str, Any], seen: frozenset[str]) -> bool:
        below = node.get("anyOf", [])
        ref = node.get("$ref")
        if ref is not None:
            target = follow(schema, ref)
            return ref in seen or target is None or back(dict(target), seen | {ref})
        return any(back(one, seen) for one in below)

    def every(node: Any) -> bool:
        if isinstance(node, dict):
            return back(node, frozenset()) or any(map(every, node.values()))
        return isinstance(node, list) and any(map(every, node))

    return every(schema)


def test_what_is_fine_is_the_same_object() -> None:
    """A schema that every provider takes is not copied."""
    schema = {
        "type": "object",
        "properties": {"a": {"type": "array", "items": {"$ref": "#/$defs/b"}}},
        "$defs": {"b": {}},
    }
    assert repaired(schema) is schema


@pytest.mark.parametrize("schema", [{}, {"type": "object"}, {"type": "object", "properties": None}])
def test_no_arguments_are_said_so(schema: dict[str, Any]) -> None:
    """The schema of the arguments is an object with properties, even without any."""
    assert repaired(schema) == {"type": "object", "properties": {}}


def test_names_that_look_like_keywords_are_names() -> None:
    """A property called ``$ref``, and data, are no references."""
    schema = {
        "type": "object",
        "properties": {"$ref": {"type": "string"}, "items": {"type": "string", "default": {"$ref": "#/x"}}},
    }
    assert repaired(schema) is schema


def test_a_reference_becomes_one_to_a_definition() -> None:
    """References that Moonshot refuses become references to definitions, also recursive ones."""
    tree = {
        "type": "object",
        "properties": {"below": {"type": "array", "items": {"$ref": "#/properties/tree"}}},
    }
    made = repaired({"type": "object", "properties": {"tree": tree}})
    assert made["properties"]["tree"]["properties"]["below"]["items"] == {"$ref": "#/$defs/part1"}
    assert made["$defs"]["part1"]["properties"]["below"]["items"] == {"$ref": "#/$defs/part1"}


def test_definitions_move_to_their_newer_place() -> None:
    """Moonshot follows only references to ``$defs``; the older ``definitions`` move there."""
    node = {"type": "object", "properties": {"below": {"$ref": "#/definitions/Node"}}}
    fields = {"a": {"$ref": "#/definitions/Node"}}
    schema = {"type": "object", "properties": fields, "definitions": {"Node": node}}
    assert repaired(schema) == {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/Node"}},
        "$defs": {"Node": {"type": "object", "properties": {"below": {"$ref": "#/$defs/Node"}}}},
    }


def test_references_under_another_base_stay() -> None:
    """Below an ``$id`` the same reference means another place, so nothing is rewritten."""
    schema = {
        "type": "object",
        "properties": {"a": {"$id": "x", "type": "string"}, "b": {"$ref": "#/properties/a"}},
    }
    assert repaired(schema) is schema


def test_repairs_are_bounded() -> None:
    """Neither deep nesting nor references that copy much make a repair long."""
    deep: dict[str, Any] = {"type": "array"}
    for _ in range(900):
        deep = {"type": "array", "items": deep}
    held = {"type": "object", "properties": {"a": deep, "b": {"$ref": "#/properties/a"}}}
    assert repaired(held)["properties"]["b"]["$ref"].startswith("#/")
    many = {f"p{at}": {"$ref": "#/properties/all"} for at in range(3)}
    whole = {"type": "object", "properties": {f"q{at}": {} for at in range(6000)}}
    schema = {"type": "object", "properties": {"all": whole, **many}}
    assert repaired(schema) is schema


@pytest.mark.parametrize(
    ("reference", "found"),
    [
        ("#", "top"),
        ("#/anyOf/1", "second"),
        ("#/$defs/a%20b", "spaced"),
        ("#/$defs/c~1d~0", "escaped"),
        ("#/anyOf/2", None),
        ("#/anyOf/-1", None),
        ("#/anyOf/x", None),
        ("#name", None),
        ("#/title/a", None),
    ],
)
def test_pointers_lead_through_lists_and_escapes(reference: str, found: str | None) -> None:
    """A JSON pointer in a fragment goes through lists, and is percent-encoded."""
    schema = {
        "title": "top",
        "anyOf": [{}, {"title": "second"}],
        "$defs": {"a b": {"title": "spaced"}, "c/d~": {"title": "escaped"}},
    }
    target = follow(schema, reference)
    assert (None if target is None else target["title"]) == found


def test_a_model_sees_the_repaired_schema() -> None:
    """What a tool declares stays as it is for the check of arguments; a model sees the repaired form."""
    spec = ToolSpec("a__b", "d", {"type": "object"}, ToolEffect.READ_ONLY, "a", lambda value: value, "x")
    seen = ToolDefinition("c", "d", {"type": "object", "properties": {}})
    assert spec.definition("c") == seen
    assert spec.parameters == {"type": "object"}


@pytest.mark.parametrize("name", ["uids[]", "$.xgafv", "a b", "é", "", "x" * 65])
def test_names_that_anthropic_refuses_are_found(name: str) -> None:
    """A property name that Anthropic refuses is found at any depth."""
    part = {"type": "object", "properties": {name: {"type": "string"}}}
    schema = {"type": "object", "properties": {"a": part}}
    assert unportable(schema) == {"a property name": "parameters.properties.a"}


def test_everything_that_some_provider_refuses_is_found() -> None:
    """Each refused keyword is found with the path of its first use; the usual ones are not."""
    plain = {"type": "object", "properties": {"a": {"anyOf": [{"type": "string"}, {"type": "null"}]}}}
    assert unportable(plain) == {}
    odd = {
        "type": "object",
        "properties": {
            "a": {"oneOf": [{"type": "array", "items": [{}]}], "patternProperties": {}},
            "b": {"type": "string", "$ref": "#"},
            "c": {"type": "string", "anyOf": [{}]},
        },
    }
    found = unportable(odd)
    beside = {"type beside $ref", "type beside anyOf"}
    assert found.keys() == {"oneOf", "patternProperties", "a list of items", "$ref", *beside}
    assert found["a list of items"] == "parameters.properties.a.oneOf[0]"
    assert found.keys() <= REFUSED_BY.keys()
