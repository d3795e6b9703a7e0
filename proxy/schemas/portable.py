"""The part of JSON Schema that all model providers accept for the arguments of a tool.

A provider refuses a whole request for one schema that it cannot read. :func:`repaired` rewrites what has
only one meaning; :func:`unportable` names what remains that some providers refuse.

Sources of the refusals: "Invalid schema for function 'F': In context=(), object schema missing properties"
and "array schema missing items" (OpenAI; github.com/openai/openai-agents-python/issues/449,
github.com/bnb-chain/bnbchain-mcp/issues/68); "Property keys should match pattern" (Anthropic;
github.com/n8n-io/n8n/issues/30590); "is not a valid moonshot flavored json schema" (Moonshot;
github.com/anomalyco/opencode/issues/27054 and /39995, github.com/router-for-me/CLIProxyAPI/issues/5316,
github.com/abhigyanpatwari/GitNexus/issues/2703); "Unknown name ... Cannot find field" (Google;
github.com/zendev-sh/zenflow/issues/14, github.com/mapbox/mcp-server/issues/68,
github.com/danny-avila/LibreChat/issues/13845).
"""

import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import unquote

from proxy.base.plain_text import plain_text

MAPS: Final = ("$defs", "definitions", "properties", "patternProperties", "dependentSchemas")
"""Keywords whose value holds schemas by name."""

LISTS: Final = ("anyOf", "oneOf", "allOf", "prefixItems")
"""Keywords whose value is a list of schemas."""

SINGLE: Final = (
    "additionalProperties",
    "contains",
    "else",
    "if",
    "items",
    "not",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
)
"""Keywords whose value is a schema."""

_HOLDERS: Final = frozenset((*MAPS, *LISTS, *SINGLE))
_OWN_BASES: Final = ("$id", "$anchor", "$dynamicRef", "$dynamicAnchor", "$recursiveRef")
"""Keywords that give references another meaning; a schema that has one keeps its references."""

_NAME: Final = re.compile(r"[A-Za-z0-9_.-]+")
_PLAIN_REFERENCE: Final = re.compile(r"#(/\$defs/[A-Za-z0-9_.-]+)?")
"""The references that stay: those that every provider that knows references follows, and the schema itself,
of which no copy can be made in it."""

_MOST_DEPTH: Final = 64
"""Parts nested deeper stay as they are."""

_MOST_COPIED: Final = 5000
"""A schema whose references would copy more parts than this keeps them."""

_MOST_PATH: Final = 200
_PROPERTY_NAME: Final = re.compile(r"[a-zA-Z0-9_.-]{1,64}")

REFUSED_BY: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "$ref": ("Moonshot",),
        "a property name": ("Anthropic",),
        "type beside $ref": ("Moonshot",),
        "type beside anyOf": ("Moonshot",),
        "a list of items": ("Google", "Moonshot", "OpenAI"),
        **dict.fromkeys(
            (
                *("allOf", "contains", "dependentRequired", "dependentSchemas", "else", "if", "not", "oneOf"),
                *("patternProperties", "prefixItems", "propertyNames", "then"),
                *("unevaluatedItems", "unevaluatedProperties"),
            ),
            ("Google",),
        ),
    }
)
"""What some providers refuse in the schema of a tool without ``strict``, and which ones."""


def repaired(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a schema with the same meaning that more providers accept; the same object if nothing changes.

    An object at the top level gets its type and its ``properties``, an array its ``items``. A reference to
    anything else than ``$defs``, such as ``#/properties/a/anyOf/1``, becomes one to a copy there.
    """
    repair = _Repair(schema)
    made = repair.part(schema, 0)
    top: dict[str, Any] = {}
    if "type" not in schema:
        top["type"] = "object"
    if made.get("properties") is None and schema.get("type", "object") == "object":
        top["properties"] = {}
    if repair.copies:
        if not repair.kept:
            made = {key: value for key, value in made.items() if key != "definitions"}
        known = made.get("$defs")
        top["$defs"] = {**(known if isinstance(known, Mapping) else {}), **repair.copies}
    return {**made, **top} if top else made


def unportable(schema: Mapping[str, Any]) -> dict[str, str]:
    """Return what some providers refuse in a schema: keys of :data:`REFUSED_BY`, each with its first path.

    The paths can be printed; a long one is cut.
    """
    found: dict[str, str] = {}
    for path, node in subschemas(schema, "parameters"):
        for feature in _features(node):
            if feature not in found:
                found[feature] = plain_text(path, _MOST_PATH)
    return found


def subschemas(node: Any, path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield every subschema with its path; data such as ``enum`` is not searched."""
    if not isinstance(node, Mapping):
        return
    yield path, node
    for key in MAPS:
        if isinstance(node.get(key), Mapping):
            for name, child in node[key].items():
                yield from subschemas(child, f"{path}.{key}.{name}")
    for key in LISTS:
        if isinstance(node.get(key), list):
            for at, child in enumerate(node[key]):
                yield from subschemas(child, f"{path}.{key}[{at}]")
    for key in SINGLE:
        yield from subschemas(node.get(key), f"{path}.{key}")


def follow(root: Mapping[str, Any], reference: str) -> Mapping[str, Any] | None:
    """Return the subschema at a JSON pointer in a fragment, such as ``#/$defs/a%20b``; ``None`` for nothing.

    Source: RFC 6901, sections 4 and 6.
    """
    node: Any = root
    pointer = unquote(reference.removeprefix("#"))
    if pointer and not pointer.startswith("/"):
        return None
    for part in pointer.split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(node, Mapping):
            node = node.get(name)
        elif isinstance(node, list) and name.isascii() and name.isdecimal() and int(name[:9]) < len(node):
            node = node[int(name[:9])]
        else:
            return None
    return node if isinstance(node, Mapping) else None


class _Repair:
    """One repair. ``copies`` are the definitions to add, by name. ``kept`` says that a reference had to
    stay as it was."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._names: dict[str, str] = {}
        self._left = _MOST_COPIED
        self._keeps_references: bool | None = None
        self.copies: dict[str, Any] = {}
        self.kept = False

    def part(self, node: Mapping[str, Any], depth: int) -> Mapping[str, Any]:
        """Return a repaired subschema; the same object if nothing in it changes."""
        new: dict[str, Any] = {}
        for key, value in node.items():
            if key in _HOLDERS:
                made = self._held(key, value, depth + 1)
                if made is not value:
                    new[key] = made
        if _is_array(node) and "items" not in node:
            new["items"] = {}
        reference = node.get("$ref")
        if isinstance(reference, str) and not _PLAIN_REFERENCE.fullmatch(reference):
            try:
                moved = self._definition(reference, depth)
            except RecursionError:  # A client's schema may nest deeper than the search for references.
                moved = reference
            if moved != reference:
                new["$ref"] = moved
            else:
                self.kept = True
        return {**node, **new} if new else node

    def _held(self, key: str, value: Any, depth: int) -> Any:
        """Return the repaired value of a keyword that holds schemas."""
        if depth > _MOST_DEPTH:
            return value
        if key in MAPS and isinstance(value, dict):
            made = {name: self._child(child, depth) for name, child in value.items()}
            return value if all(made[name] is child for name, child in value.items()) else made
        if key in LISTS and isinstance(value, list):
            listed = [self._child(child, depth) for child in value]
            return value if all(map(_same, listed, value)) else listed
        return self._child(value, depth) if key in SINGLE else value

    def _child(self, node: Any, depth: int) -> Any:
        return self.part(node, depth) if isinstance(node, dict) else node

    def _definition(self, reference: str, depth: int) -> str:
        """Return a reference to a copy in ``$defs``, or the same one if it cannot be copied."""
        target = follow(self._root, reference)
        if target is None or self._keeps():
            return reference
        if reference not in self._names:
            size = sum(1 for _ in subschemas(target, ""))
            if size > self._left:
                return reference
            self._left -= size
            taken = (self._root.get("$defs") or {}).keys() | set(self._names.values())
            numbered = (f"part{at + 1}" for at in range(len(taken) + 1))
            named = [one for one in [reference.rpartition("/")[2]] if "/definitions/" in reference]
            names = (one for one in (*named, *numbered) if _NAME.fullmatch(one))
            name = next(one for one in names if one not in taken)
            self._names[reference] = name
            self.copies[name] = self.part(target, depth + 1)
        return f"#/$defs/{self._names[reference]}"

    def _keeps(self) -> bool:
        """Return whether references may mean something else than a place in the whole schema."""
        if self._keeps_references is None:
            has_defs = isinstance(self._root.get("$defs", {}), Mapping)
            below = (node for path, node in subschemas(self._root, "") if path)
            self._keeps_references = not has_defs or any(key in node for node in below for key in _OWN_BASES)
        return self._keeps_references


def _same(one: Any, other: Any) -> bool:
    return one is other


def _is_array(node: Mapping[str, Any]) -> bool:
    kind = node.get("type")
    return kind == "array" or (isinstance(kind, list) and "array" in kind)


def _features(node: Mapping[str, Any]) -> Iterator[str]:
    """Yield what some providers refuse in one subschema, without what is in it."""
    names = node.get("properties")
    if isinstance(names, Mapping) and not all(map(_PROPERTY_NAME.fullmatch, names)):
        yield "a property name"
    reference = node.get("$ref", "")
    if isinstance(reference, str) and reference and not reference.startswith("#/$defs/"):
        yield "$ref"
    if "type" in node:
        yield from (f"type beside {key}" for key in ("$ref", "anyOf") if key in node)
    if isinstance(node.get("items"), list):
        yield "a list of items"
    yield from (key for key in node if key in REFUSED_BY and key != "$ref")
