"""Schemas of tools: the ones sent to the model, the refused ones, and strict mode; rule T8."""

import datetime
import json
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, SecretStr, TypeAdapter, create_model

from proxy.base.errors import ConfigError
from proxy.records.rows import ToolEffect
from proxy.tools.contract.schemas.schema import (
    check_private_paths,
    check_schema,
    derive_schema,
    may_have,
    property_names,
    spec_digest,
)
from proxy.tools.contract.schemas.strict import to_strict


class Cabin(Enum):
    """Where to sit."""

    ECONOMY = "economy"
    FIRST = "first"


class Slice(BaseModel):
    """One leg."""

    title: Annotated[str, Field(description="A field that is called title")]
    day: datetime.date


class Search(BaseModel):
    """A search."""

    slices: list[Slice]
    cabin: Cabin = Cabin.ECONOMY
    adults: Annotated[int, Field(ge=1, le=9)] = 1
    note: str | None = None
    extra: dict[str, int] = {}


def nested(levels: int) -> dict[str, Any]:
    """Closed objects, nested ``levels`` deep."""
    inner = {"a": nested(levels - 1)} if levels > 1 else {}
    return {
        "type": "object",
        "properties": inner,
        "required": list(inner),
        "additionalProperties": False,
    }


def schema_of(model: Any) -> dict[str, Any]:
    """The wire schema of a model."""
    return derive_schema(TypeAdapter(model), "tool t__x")


def test_derived_schema_is_exact() -> None:
    """Rule T8: a derived schema has no titles, closed objects, and the model's $defs, enums and defaults."""
    assert schema_of(Search) == {
        "type": "object",
        "properties": {
            "slices": {"type": "array", "items": {"$ref": "#/$defs/Slice"}},
            "cabin": {"$ref": "#/$defs/Cabin", "default": "economy"},
            "adults": {"type": "integer", "default": 1, "maximum": 9, "minimum": 1},
            "note": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
            "extra": {"type": "object", "additionalProperties": {"type": "integer"}, "default": {}},
        },
        "required": ["slices"],
        "additionalProperties": False,
        "$defs": {
            "Cabin": {"type": "string", "description": "Where to sit.", "enum": ["economy", "first"]},
            "Slice": {
                "type": "object",
                "description": "One leg.",
                "properties": {
                    "title": {"type": "string", "description": "A field that is called title"},
                    "day": {"type": "string", "format": "date"},
                },
                "required": ["title", "day"],
                "additionalProperties": False,
            },
        },
    }


def test_derived_schema_is_byte_stable() -> None:
    """Rule T7: the same model always gives the same bytes, so that prompt caches work."""
    assert json.dumps(schema_of(Search)) == json.dumps(schema_of(Search))
    assert list(schema_of(Search)) == ["type", "properties", "required", "additionalProperties", "$defs"]


def test_model_that_takes_extra_fields_is_refused() -> None:
    """Rule T3: a model that allows extra fields cannot be a tool's arguments."""

    class Open(BaseModel):
        model_config = ConfigDict(extra="allow")
        a: int

    class Outer(BaseModel):
        inner: Open

    with pytest.raises(ConfigError, match=r"parameters.\$defs.Open: the model allows extra fields"):
        schema_of(Outer)


@pytest.mark.parametrize(
    "reference", ["#/properties/a/anyOf/1/properties/to/items", "#/$defs/Page%5Bstr%5D", "#/$defs/Page[str]"]
)
def test_a_reference_is_a_json_pointer(reference: str) -> None:
    """Rule T8: a reference may lead through a list and be percent-encoded."""
    to = {"type": "object", "properties": {"to": {"type": "array", "items": {"type": "string"}}}}
    schema = {
        "type": "object",
        "properties": {"a": {"anyOf": [{"type": "null"}, to]}, "b": {"$ref": reference}},
        "$defs": {"Page[str]": {"type": "string"}},
    }
    check_schema(schema, "tool a__b")
    assert may_have({**schema, "additionalProperties": False}, "b")


@pytest.mark.parametrize(
    ("schema", "fault"),
    [
        ([], "parameters: must be a dict"),
        ({}, "parameters.type: must be"),
        ({"type": "array"}, "parameters.type: must be"),
        ({"type": "object", "oneOf": []}, "parameters.oneOf: no provider"),
        (
            {"type": "object", "properties": {"a": {"type": "objekt"}}},
            "parameters.properties.a.type: is not valid",
        ),
        ({"type": "object", "properties": {"a": {"const": (1,)}}}, "parameters.properties.a.const: tuple"),
        ({"type": "object", "properties": {1: {}}}, "parameters.properties: a key is not text"),
        (
            {"type": "object", "properties": {"a": {"$ref": "#/$defs/B"}}},
            r"parameters.properties.a.\$ref: refers",
        ),
        (
            {"type": "object", "properties": {"a": {"$ref": "http://x/y"}}},
            r"properties.a.\$ref: a reference",
        ),
        ({"type": "object", "properties": {"a": {"enum": []}}}, "parameters.properties.a.enum: has no value"),
        ({"type": "object", "minimum": float("nan")}, "parameters: cannot be written"),
        ({"type": "object", "description": "x" * 70000}, "parameters: larger than"),
    ],
)
def test_schema_that_no_wire_takes_is_refused(schema: Any, fault: str) -> None:
    """Rule T8: a schema that a wire cannot take is refused with the path of the fault."""
    with pytest.raises(ConfigError, match=fault) as caught:
        check_schema(schema, "tool t__x")
    assert caught.value.setting == "tool t__x"


def test_schema_that_nests_too_deeply_is_refused() -> None:
    """Rule T8: a schema that nests too deeply, such as one that contains itself, is refused."""
    schema: dict[str, Any] = {"type": "object", "properties": {}}
    schema["properties"]["a"] = schema
    with pytest.raises(ConfigError, match="nested deeper"):
        check_schema(schema, "tool t__x")


def test_recursive_reference_is_taken() -> None:
    """A schema with a recursive reference is valid."""

    class Node(BaseModel):
        children: list["Node"] = []

    class Tree(BaseModel):
        root: Node

    check_schema(schema_of(Tree), "tool t__x")
    assert property_names(schema_of(Tree)) == {"root", "children"}


def test_strict_takes_a_description_beside_a_model_that_holds_itself() -> None:
    """Rule T8: strict mode inlines a described recursive reference once, and then wraps it in anyOf."""

    class Node(BaseModel):
        kids: list[Annotated["Node", Field(description="below")]]

    Node.model_rebuild(_types_namespace={"Node": Node})
    strict = to_strict(schema_of(Node), "tool t__x")
    kid = strict["properties"]["kids"]["items"]
    assert (kid["type"], kid["description"], kid["additionalProperties"]) == ("object", "below", False)
    inner = kid["properties"]["kids"]["items"]
    assert inner == {"description": "below", "anyOf": [{"$ref": "#/$defs/Node"}]}
    check_schema(strict, "tool t__x")
    assert to_strict(strict, "tool t__x") == strict


def test_strict_does_not_write_out_without_end() -> None:
    """Strict mode refuses a schema whose references to each other would be inlined too often."""
    names = [f"N{at}" for at in range(9)]
    fields = {name: {"$ref": f"#/$defs/{name}", "description": "x"} for name in names}
    node = {"type": "object", "properties": fields, "required": names, "additionalProperties": False}
    with pytest.raises(ConfigError, match="parts with references"):
        to_strict({**node, "$defs": dict.fromkeys(names, node)}, "tool t__x")


def test_strict_leaves_what_is_strict_as_it_is() -> None:
    """Rule T8: strict mode leaves a schema that is already strict unchanged, with order and dialect."""
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {"a": {"type": "string"}, "b": {"type": "string"}},
        "required": ["b", "a"],
        "additionalProperties": False,
    }
    assert to_strict(schema, "tool t__x") == schema


@pytest.mark.parametrize("kind", [SecretStr, Path, bytes])
def test_strict_drops_formats_that_any_text_fits(kind: type) -> None:
    """Rule T8: strict mode drops formats that any text meets: of secrets, paths and bytes."""

    wanted = create_model("Wanted", a=(kind, ...))
    assert to_strict(schema_of(wanted), "tool t__x")["properties"]["a"] == {"type": "string"}


def test_strict_closes_and_requires_everything() -> None:
    """Rule T8: strict mode has every object closed, every field required, and no default."""

    class Cat(BaseModel):
        kind: Literal["cat"]

    class Dog(BaseModel):
        kind: Literal["dog"]

    class Wanted(BaseModel):
        pet: Annotated[Cat | Dog, Field(discriminator="kind", description="Which")]
        cabin: Annotated[Cabin, Field(description="Seat")]
        note: str | None = None

    strict = to_strict(schema_of(Wanted), "tool t__x")
    assert strict["required"] == ["pet", "cabin", "note"]
    assert strict["properties"]["note"] == {"anyOf": [{"type": "string"}, {"type": "null"}]}
    assert strict["properties"]["cabin"] == {
        "type": "string",
        "description": "Seat",
        "enum": ["economy", "first"],
    }
    assert strict["properties"]["pet"] == {
        "description": "Which",
        "anyOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}],
    }
    assert "default" not in json.dumps(strict)
    assert to_strict(strict, "tool t__x") == strict
    check_schema(strict, "tool t__x")


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"a": {"type": "integer", "default": 1}}, "parameters.properties.a: strict mode requires"),
        (
            {"a": {"type": "object", "additionalProperties": {"type": "integer"}}},
            "parameters.properties.a.additionalProperties: strict mode takes no open object",
        ),
        (
            {"a": {"type": "array", "items": {"not": {}}}},
            "parameters.properties.a.items.not: strict mode has no",
        ),
        ({"a": True}, "parameters.properties.a: strict mode needs a schema"),
        ({"a": {}}, "parameters.properties.a: strict mode needs a type"),
        ({"a": {"description": "x"}}, "parameters.properties.a: strict mode needs a type"),
        ({"a": {"enum": [{}]}}, "parameters.properties.a: strict mode needs a type"),
        ({"a": {"anyOf": [{"type": "null"}, {}]}}, r"parameters.properties.a.anyOf\[1\]: strict mode needs"),
        (
            {"a": {"type": "array"}},
            "parameters.properties.a: strict mode needs the type of a list's elements",
        ),
        (
            {"a": {"type": ["array", "null"]}},
            "parameters.properties.a: strict mode needs the type of a list's",
        ),
        ({"a": {"type": "array", "items": {}}}, "parameters.properties.a.items: strict mode needs a type"),
        (
            {"a": {"type": "array", "items": {"type": "null"}, "uniqueItems": True}},
            "parameters.properties.a.uniqueItems: strict mode has no such keyword here. use a list",
        ),
        ({"a": {"type": "string", "maxLength": 5}}, "parameters.properties.a.maxLength: strict mode has no"),
        ({"a": {"type": "string", "maximum": 5}}, "parameters.properties.a.maximum: strict mode has no"),
        ({"a": {"type": "string", "format": "uri"}}, "parameters.properties.a.format: strict mode does not"),
        (
            {"a": {"type": "string", "pattern": "^(?!x)y$"}},
            "parameters.properties.a.pattern: strict mode takes no look-around",
        ),
        (
            {"a": {"type": ["object", "null"], "properties": {}, "additionalProperties": True}},
            "parameters.properties.a.additionalProperties: strict mode takes no open object",
        ),
        (
            {"a": {"type": ["object", "null"], "properties": {"b": {"type": "string"}}}},
            "parameters.properties.a.properties.b: strict mode requires every field",
        ),
        ({"a": {"enum": list(range(1001))}}, "parameters.properties.a.enum: strict mode takes 1000 values"),
        (
            {"a": {"enum": [f"{n:060}" for n in range(251)]}},
            "parameters.properties.a.enum: strict mode takes 15000 characters",
        ),
        ({"a": nested(10)}, f"parameters{'.properties.a' * 10}: strict mode takes 10 levels"),
        ({"a": {"$ref": "#", "type": "object"}}, "a reference with a neighbour leads back to itself"),
    ],
)
def test_strict_refuses_with_the_path(fields: dict[str, Any], fault: str) -> None:
    """Rule T8: a schema that strict mode cannot express is refused with the path of the fault."""
    required = [] if "default" in json.dumps(fields) else ["a"]
    schema = {"type": "object", "properties": fields, "required": required, "additionalProperties": False}
    with pytest.raises(ConfigError, match=fault):
        to_strict(schema, "tool t__x")


def test_strict_takes_what_the_guide_lists() -> None:
    """Rule T8: strict mode keeps supported keywords unchanged, and drops unsupported annotations."""
    fields = {
        "text": {"type": "string", "pattern": "^[a-z]+$"},
        "mail": {"type": ["string", "null"], "format": "email"},
        "number": {"type": "number", "minimum": 0, "exclusiveMaximum": 9, "multipleOf": 0.5},
        "list": {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3},
        "inner": {
            "type": ["object", "null"],
            "properties": {"kind": {"type": "string", "const": "a"}},
            "required": ["kind"],
            "additionalProperties": False,
        },
        "deep": nested(9),
    }
    schema = {
        "type": "object",
        "properties": fields,
        "required": list(fields),
        "additionalProperties": False,
    }
    assert to_strict(schema, "tool t__x") == schema
    noted = {"type": "object", "properties": {"a": {"enum": [1, None], "examples": [1], "readOnly": True}}}
    assert to_strict(noted, "tool t__x")["properties"]["a"] == {
        "type": ["integer", "null"],
        "enum": [1, None],
    }


def test_strict_closes_an_object_that_may_be_null() -> None:
    """Rule T8: strict mode closes an object that may be null, and requires its fields."""
    inner = {"type": ["object", "null"], "properties": {"b": {"type": ["string", "null"]}}}
    schema = {"type": "object", "properties": {"a": inner}, "required": ["a"]}
    strict = to_strict(schema, "tool t__x")["properties"]["a"]
    assert (strict["required"], strict["additionalProperties"]) == (["b"], False)


def test_private_paths_must_exist() -> None:
    """Rule T4: a path of a private argument that the schema does not have is refused at the start."""
    schema = schema_of(Search)
    check_private_paths(schema, ("note", "slices.*.day", "slices", "extra.anything", "*"), "tool t__x")
    for path in ("nots", "slices.day", "slices.*.days", "note.a"):
        with pytest.raises(ConfigError, match="is not in the schema"):
            check_private_paths(schema, (path,), "tool t__x")


def test_digest_follows_the_contract() -> None:
    """Rule T9: the digest depends on name, description, schema and effect, but not on the order of keys."""
    base = ("t__x", "Say it", {"type": "object", "properties": {}}, ToolEffect.READ_ONLY)
    digest = spec_digest(*base)
    assert len(digest) == 64
    assert digest == spec_digest("t__x", "Say it", {"properties": {}, "type": "object"}, ToolEffect.READ_ONLY)
    others = [
        spec_digest("t__y", *base[1:]),
        spec_digest("t__x", "Say so", *base[2:]),
        spec_digest("t__x", "Say it", {"type": "object"}, ToolEffect.READ_ONLY),
        spec_digest(*base[:3], ToolEffect.STATE_CHANGE),
    ]
    assert len({digest, *others}) == 5
