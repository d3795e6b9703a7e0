"""Find the values at a dotted path of a call's arguments: those that the model wrote, or the defaults.

A default is known only if the schema contains it. A default factory's value is in no schema.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from proxy.tools.contract.schemas.schema import MAX_SCHEMA_DEPTH, resolve

Schema = Mapping[str, Any]

ABSENT: Final = object()
"""There is no value at the path and no known default."""

IN_THE_WAY: Final = object()
"""A value above the path is neither object nor list; the tool may understand it in any way."""


def values_at(arguments: Mapping[str, Any], path: str, schema: Schema) -> Iterator[tuple[Any, bool]]:
    """Yield every value at a path, and whether the model wrote it.

    ``*`` stands for every element of a list or every value of an object. The value is :data:`ABSENT` or
    :data:`IN_THE_WAY` where there is none.
    """
    return _values(arguments, path.split("."), [schema], schema, written=True)


def defaults_at(path: str, schema: Schema) -> list[Any]:
    """Return every default that a value at a path may get, whatever the model writes around it."""
    defaults: list[Any] = []
    _collect(schema, path.split("."), schema, 0, defaults)
    return defaults


def _values(
    value: Any, parts: Sequence[str], nodes: Sequence[Any], root: Schema, *, written: bool
) -> Iterator[tuple[Any, bool]]:
    """Recursive part of :func:`values_at`; ``nodes`` are the subschemas that apply to ``value``."""
    if not parts:
        yield value, written
        return
    head, rest = parts[0], parts[1:]
    if not isinstance(value, dict) and not (isinstance(value, list) and head == "*"):
        yield (ABSENT if value is None else IN_THE_WAY), written
        return
    applicable = [schema for node in nodes for schema in _applicable(node, value, root, 0)]
    if isinstance(value, list):
        for index, child in enumerate(value):
            below = [part for node in applicable for part in _element(node, index)]
            yield from _values(child, rest, below, root, written=written)
        return
    for name, child in value.items():
        if head in ("*", name):
            below = [part for node in applicable for part in _field(node, name)]
            yield from _values(child, rest, below, root, written=written)
    left_out = [name for node in applicable for name in node.get("properties", {}) if name not in value]
    present = head in value or head == "*"
    for name in dict.fromkeys(left_out):
        if head not in ("*", name):
            continue
        below = [part for node in applicable for part in _field(node, name)]
        for default in _defaults(below, root):
            present = True
            yield from _values(default, rest, below, root, written=False)
    if not present:
        yield ABSENT, written


def _applicable(node: Any, value: Any, root: Schema, depth: int) -> Iterator[Schema]:
    """Yield the subschemas that apply to ``value``; of a union, only the branches that may match."""
    if not isinstance(node, Mapping) or depth > MAX_SCHEMA_DEPTH:
        return
    yield node
    if "$ref" in node:
        yield from _applicable(resolve(root, node["$ref"], "$ref", ""), value, root, depth + 1)
    for part in node.get("allOf", ()):
        yield from _applicable(part, value, root, depth + 1)
    for key in ("anyOf", "oneOf"):
        for branch in node.get(key, ()):
            branch_schemas = list(_applicable(branch, value, root, depth + 1))
            if all(_may_be(schema, value) for schema in branch_schemas):
                yield from branch_schemas


def _may_be(node: Schema, value: Any) -> bool:
    """Return whether ``value`` may match a branch of a union, by the branch's own keywords."""
    kinds = node.get("type", ())
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if kinds and ("object" if isinstance(value, dict) else "array") not in kinds:
        return False
    if isinstance(value, list):
        return True
    fields = node.get("properties", {})
    if node.get("additionalProperties") is False and not value.keys() <= fields.keys():
        return False
    return set(node.get("required", ())) <= value.keys() and all(
        value[name] in values
        for name, field in fields.items()
        if name in value and isinstance(field, Mapping)
        for values in ([field["const"]] if "const" in field else field.get("enum"),)
        if values is not None
    )


def _field(node: Schema, name: str) -> list[Any]:
    """Return what a subschema declares for one value of an object."""
    fields = node.get("properties", {})
    return [fields[name] if name in fields else node.get("additionalProperties")]


def _element(node: Schema, index: int) -> list[Any]:
    """Return what a subschema declares for one element of a list."""
    first = node.get("prefixItems", ())
    return [first[index] if index < len(first) else node.get("items")]


def _defaults(nodes: Sequence[Any], root: Schema) -> Iterator[Any]:
    """Yield the defaults that the subschemas of an absent value declare."""
    for node in nodes:
        for _ in range(MAX_SCHEMA_DEPTH):
            if not isinstance(node, Mapping):
                break
            if "default" in node:
                yield node["default"]
                break
            node = resolve(root, node["$ref"], "$ref", "") if "$ref" in node else None


def _collect(node: Any, parts: Sequence[str], root: Schema, depth: int, defaults: list[Any]) -> None:
    """Recursive part of :func:`defaults_at`; it follows every branch of the schema."""
    if not isinstance(node, Mapping) or not parts or depth > MAX_SCHEMA_DEPTH:
        return
    if "$ref" in node:
        _collect(resolve(root, node["$ref"], "$ref", ""), parts, root, depth + 1, defaults)
    for key in ("allOf", "anyOf", "oneOf"):
        for part in node.get(key, ()):
            _collect(part, parts, root, depth + 1, defaults)
    head, rest = parts[0], parts[1:]
    for name, field in node.get("properties", {}).items():
        if head not in ("*", name):
            continue
        for default in _defaults([field], root):
            values = (value for value, _ in _values(default, rest, [field], root, written=False))
            defaults += [value for value in values if value is not ABSENT and value is not IN_THE_WAY]
        _collect(field, rest, root, depth + 1, defaults)
    if head == "*":
        for part in (*node.get("prefixItems", ()), node.get("items")):
            _collect(part, rest, root, depth + 1, defaults)
    _collect(node.get("additionalProperties"), rest, root, depth + 1, defaults)
