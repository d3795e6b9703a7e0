"""Convert a tool's schema to the form that providers' strict mode accepts, or name the path of the fault.

If strict mode does not support one schema, the provider refuses the whole request, and then no tool works.
So only what is known to be supported passes, by the list of "supported schemas" in
https://platform.openai.com/docs/guides/structured-outputs. ``minLength`` and ``maxLength`` are not in it.
"""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from proxy.base.errors import ConfigError
from proxy.tools.contract.schemas.schema import MAX_SCHEMA_DEPTH, resolve
from proxy.tools.contract.schemas.schema_library import linear_pattern

_MAX_LEVELS = 10
_MAX_PARTS = 10_000
_MAX_ENUM_VALUES = 1000
_LONG_ENUM = 250
_MAX_LONG_ENUM_CHARACTERS = 15000

_DROPPED = frozenset(
    {"$comment", "$schema", "default", "deprecated", "discriminator", "examples", "readOnly", "writeOnly"}
)
"""Keywords that do not restrict values and that strict mode does not accept."""

_EVERYWHERE = frozenset({"$defs", "const", "definitions", "description", "enum", "title", "type"})
_UNCHECKED_FORMATS = frozenset({"binary", "password", "path"})
"""Formats that only say how to show or use a text: any text is valid."""

_NUMBER = frozenset({"exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum", "multipleOf"})
_OF_TYPE: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "array": frozenset({"items", "maxItems", "minItems"}),
        "boolean": frozenset(),
        "integer": _NUMBER,
        "null": frozenset(),
        "number": _NUMBER,
        "object": frozenset({"additionalProperties", "properties", "required"}),
        "string": frozenset({"format", "pattern"}),
    }
)
_KNOWN = _EVERYWHERE.union(*_OF_TYPE.values())
_FORMATS = frozenset({"date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uuid"})
_HINTS: Mapping[str, str] = MappingProxyType(
    {
        "maxLength": "a pattern can say it: ^.{0,100}$",
        "minLength": "a pattern can say it: ^.{1,}$",
        "prefixItems": "use an object with a field for each",
        "uniqueItems": "use a list and check it in the tool",
    }
)
_JSON_TYPES: Mapping[type, str] = MappingProxyType(
    {bool: "boolean", int: "integer", float: "number", str: "string", type(None): "null"}
)


def to_strict(schema: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the schema in the form that providers' strict mode requires.

    Every object is closed and requires all of its fields. ``default`` and other notes are removed, ``oneOf``
    becomes ``anyOf``, and a ``$ref`` with neighbours is expanded. Raises
    :class:`ConfigError` with the path of what strict mode cannot express. That includes an
    optional field that cannot be ``null``, because the model would have no way to leave it out.
    """
    strict = _Converter(schema, where).convert(schema, "parameters", 1)
    # Strict mode accepts it at the top level, and an author's own schema must not change.
    return {"$schema": schema["$schema"], **strict} if "$schema" in schema else strict


class _Converter:
    """One conversion. ``level`` is the nesting level of objects; it is 1 at the top."""

    def __init__(self, root: Mapping[str, Any], where: str) -> None:
        self._root = root
        self._where = where
        self._enum_values = 0
        self._open: list[str] = []
        self._parts = 0

    def convert(self, node: Any, path: str, level: int) -> dict[str, Any]:
        """Return a subschema in strict form."""
        if not isinstance(node, Mapping):
            raise self._fault(path, "strict mode needs a schema here")
        self._parts += 1
        if self._parts > _MAX_PARTS:
            raise self._fault(
                "parameters", f"more than {_MAX_PARTS} parts with references that have neighbours written out"
            )
        node = {key: value for key, value in node.items() if key not in _DROPPED}
        if node.get("format") in _UNCHECKED_FORMATS:
            del node["format"]
        if "$ref" not in node:
            return self._written(node, path, level)
        opened = len(self._open)
        try:
            node = self._written_out(node, path)
            return self._children(node, path, level) if "$ref" in node else self._written(node, path, level)
        finally:
            del self._open[opened:]

    def _written(self, node: dict[str, Any], path: str, level: int) -> dict[str, Any]:
        """Return a subschema that is not a reference in strict form."""
        if "anyOf" in node or "oneOf" in node:
            self._check_keywords(node, _EVERYWHERE | {"anyOf", "oneOf"}, path)
        else:
            node = self._typed(node, path)
        kinds = _kinds(node)
        self._check_enum(node, path)
        self._check_text(node, path)
        if "array" in kinds and "items" not in node:
            raise self._fault(
                path, "strict mode needs the type of a list's elements", "for example list[str]"
            )
        strict = self._children(node, path, level)
        if "object" in kinds:
            if level > _MAX_LEVELS:
                raise self._fault(path, f"strict mode takes {_MAX_LEVELS} levels of objects at most")
            self._close(node, strict, path)
        return strict

    def _written_out(self, node: dict[str, Any], path: str) -> dict[str, Any]:
        """Return a reference without neighbours as it is; otherwise its target with the neighbours merged in.

        A target that is being expanded already cannot be expanded into itself. There a description goes
        beside an ``anyOf`` with one branch.
        """
        neighbours = {
            key: value for key, value in node.items() if key not in ("$ref", "$defs", "definitions")
        }
        if not neighbours:
            return node
        if node["$ref"] in self._open:
            if neighbours.keys() - {"description", "title"}:
                raise self._fault(path, "a reference with a neighbour leads back to itself")
            return {**neighbours, "anyOf": [{"$ref": node["$ref"]}]}
        self._open.append(node["$ref"])
        target = resolve(self._root, node["$ref"], f"{path}.$ref", self._where)
        written = {key: value for key, value in target.items() if key not in _DROPPED}
        merged = {**written, **neighbours}
        return self._written_out(merged, path) if "$ref" in written else merged

    def _typed(self, node: dict[str, Any], path: str) -> dict[str, Any]:
        """Return the subschema with the type that strict mode requires; ``enum`` values may imply it."""
        self._check_keywords(node, _KNOWN, path)
        kinds = _kinds(node)
        if not kinds:
            values = [node["const"]] if "const" in node else node.get("enum", ())
            kinds = list(dict.fromkeys(_JSON_TYPES.get(type(value), "") for value in values))
            if not kinds or "" in kinds:
                raise self._fault(
                    path, "strict mode needs a type here", "Any can be anything: say what it is"
                )
            node = {"type": kinds[0] if len(kinds) == 1 else kinds, **node}
        allowed = _EVERYWHERE.union(*(_OF_TYPE.get(kind, frozenset()) for kind in kinds))
        self._check_keywords(node, allowed, path)
        return node

    def _check_keywords(self, node: Mapping[str, Any], allowed: frozenset[str], path: str) -> None:
        for keyword in node:
            if keyword not in allowed:
                raise self._fault(
                    f"{path}.{keyword}", "strict mode has no such keyword here", _HINTS.get(keyword, "")
                )

    def _check_enum(self, node: Mapping[str, Any], path: str) -> None:
        values = node.get("enum", ())
        self._enum_values += len(values)
        if self._enum_values > _MAX_ENUM_VALUES:
            raise self._fault(f"{path}.enum", f"strict mode takes {_MAX_ENUM_VALUES} values in all")
        characters = sum(len(value) for value in values if isinstance(value, str))
        if len(values) > _LONG_ENUM and characters > _MAX_LONG_ENUM_CHARACTERS:
            raise self._fault(
                f"{path}.enum",
                f"strict mode takes {_MAX_LONG_ENUM_CHARACTERS} characters in more than {_LONG_ENUM} values",
            )

    def _check_text(self, node: Mapping[str, Any], path: str) -> None:
        if "format" in node and node["format"] not in _FORMATS:
            raise self._fault(
                f"{path}.format", "strict mode does not know it", f"it knows {_listed(_FORMATS)}"
            )
        if "pattern" not in node:
            return
        try:
            linear_pattern(node["pattern"])
        except ValueError:
            raise self._fault(
                f"{path}.pattern", "strict mode takes no look-around or back-reference"
            ) from None

    def _children(self, node: Mapping[str, Any], path: str, level: int) -> dict[str, Any]:
        """Return the subschema with all of its children in strict form."""
        strict: dict[str, Any] = {}
        for key, value in node.items():
            if key in ("$defs", "definitions"):
                strict[key] = {
                    name: self.convert(child, f"{path}.{key}.{name}", 1) for name, child in value.items()
                }
            elif key == "properties":
                strict[key] = {
                    name: self.convert(child, f"{path}.{key}.{name}", level + 1)
                    for name, child in value.items()
                }
            elif key in ("anyOf", "oneOf"):
                strict["anyOf"] = [
                    self.convert(child, f"{path}.{key}[{index}]", level) for index, child in enumerate(value)
                ]
            elif key == "items":
                strict[key] = self.convert(value, f"{path}.items", level)
            elif key not in ("additionalProperties", "required"):
                strict[key] = value
        return strict

    def _close(self, node: Mapping[str, Any], strict: dict[str, Any], path: str) -> None:
        """Make an object require all of its fields and allow no others."""
        if node.get("additionalProperties", False) is not False:
            raise self._fault(f"{path}.additionalProperties", "strict mode takes no open object")
        fields = node.get("properties", {})
        for name, field in fields.items():
            if name not in node.get("required", []) and not self._takes_null(field, 0):
                raise self._fault(
                    f"{path}.properties.{name}",
                    "strict mode requires every field, and this one is optional",
                    "let it be null (`int | None = None`) or give it no default",
                )
        strict["properties"] = strict.get("properties", {})
        required = node.get("required", [])
        strict["required"] = list(required if set(required) == set(fields) else fields)
        strict["additionalProperties"] = False

    def _takes_null(self, node: Any, depth: int) -> bool:
        """Return whether a subschema accepts ``null``."""
        if not isinstance(node, Mapping) or depth > MAX_SCHEMA_DEPTH:
            return False
        if isinstance(node.get("$ref"), str):
            return self._takes_null(resolve(self._root, node["$ref"], "$ref", self._where), depth + 1)
        values = [node["const"]] if "const" in node else node.get("enum", ())
        if "null" in _kinds(node) or None in values:
            return True
        return any(self._takes_null(part, depth + 1) for part in _branches(node))

    def _fault(self, path: str, problem: str, hint: str = "") -> ConfigError:
        return ConfigError(self._where, f"{path}: {problem}", hint)


def _kinds(node: Mapping[str, Any]) -> list[str]:
    """Return the types that a subschema names."""
    kinds = node.get("type", ())
    return [kinds] if isinstance(kinds, str) else list(kinds)


def _branches(node: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the branches of a union."""
    for key in ("anyOf", "oneOf"):
        yield from node.get(key, ())


def _listed(names: frozenset[str]) -> str:
    return ", ".join(sorted(names))
