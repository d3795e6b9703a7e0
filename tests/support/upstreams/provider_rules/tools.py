"""Rules for tools that several dialects share: names, choices and schemas."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from provider_rules.rule import Fault, Place, length_of, path_text

MOST_TOOLS = 128
_NAME = re.compile(r"[a-zA-Z0-9_-]+")
_NESTED = ("anyOf", "oneOf", "allOf")
_BAD = "invalid_function_parameters"


def count_faults(tools: Sequence[Any]) -> Iterator[Fault]:
    """Yield OpenAI's fault for too many tools."""
    if len(tools) > MOST_TOOLS:
        said = f"Invalid 'tools': array too long. Expected an array with maximum length {MOST_TOOLS}"
        said = f"{said}, but got an array with length {len(tools)} instead."
        yield Fault(said, ("tools",), "array_above_max_length")


def name_faults(name: Any, place: Place, most: int = 64) -> Iterator[Fault]:
    """Yield OpenAI's faults for the name of a function, which may have ``most`` characters."""
    if not isinstance(name, str) or not name:
        yield Fault(f"Missing required parameter: '{path_text(place)}'.", place, "missing_required_parameter")
        return
    if not _NAME.fullmatch(name):
        said = f"Invalid '{path_text(place)}': string does not match pattern. Expected a string that matches"
        yield Fault(f"{said} the pattern '^[a-zA-Z0-9_-]+$'.", place, "invalid_value")
    yield from length_of(name, most, place)


def twice(names: Sequence[str]) -> str:
    """Return the first name that is there twice, or an empty text."""
    return next((name for at, name in enumerate(names) if name in names[:at]), "")


def subschemas(schema: Any, context: Place = ()) -> Iterator[tuple[Place, Mapping[str, Any]]]:
    """Yield a schema and each schema in it with its context as OpenAI's errors name it."""
    if not isinstance(schema, dict):
        return
    yield context, schema
    for holder in ("properties", "$defs", "definitions"):
        for name, inner in (schema.get(holder) or {}).items():
            yield from subschemas(inner, (*context, holder, name))
    yield from subschemas(schema.get("items"), (*context, "items"))
    yield from subschemas(schema.get("additionalProperties"), (*context, "additionalProperties"))
    for kind in _NESTED:
        for at, inner in enumerate(schema.get(kind) or ()):
            yield from subschemas(inner, (*context, kind, str(at)))


def _is(schema: Mapping[str, Any], kind: str) -> bool:
    return kind in (found if isinstance(found := schema.get("type"), list) else [found])


def _said(name: str, context: Place, text: str) -> str:
    return f"Invalid schema for function '{name}': In context={context!r}, {text}"


def root_faults(name: str, schema: Any, place: Place) -> Iterator[Fault]:
    """Yield OpenAI's fault for a schema that is not one of an object."""
    kind = schema.get("type") if isinstance(schema, dict) else schema
    if kind != "object":
        said = f"Invalid schema for function '{name}': schema must be a JSON Schema of 'type: \"object\"'"
        yield Fault(f"{said}, got 'type: \"{kind}\"'.", place, _BAD)


def schema_faults(name: str, schema: Mapping[str, Any], place: Place) -> Iterator[Fault]:
    """Yield OpenAI's faults for the schema of a function, strict or not.

    Only the outermost object must list its properties; every array must describe its items.
    """
    if "properties" not in schema and schema.get("type") == "object":
        yield Fault(_said(name, (), "object schema missing properties."), place, _BAD)
    for context, inner in subschemas(schema):
        if _is(inner, "array") and "items" not in inner:
            yield Fault(_said(name, context, "array schema missing items."), place, _BAD)


def strict_faults(name: str, schema: Any, place: Place) -> Iterator[Fault]:
    """Yield OpenAI's faults for a schema that must be strict: closed objects, every property required."""
    for context, inner in subschemas(schema):
        if not _is(inner, "object"):
            continue
        if inner.get("additionalProperties") is not False:
            said = "'additionalProperties' is required to be supplied and to be false."
            yield Fault(_said(name, context, said), place, _BAD)
        if missing := [
            each for each in inner.get("properties") or () if each not in inner.get("required", ())
        ]:
            said = "'required' is required to be supplied and to be an array including every key in"
            yield Fault(_said(name, context, f"{said} properties. Missing '{missing[0]}'."), place, _BAD)
