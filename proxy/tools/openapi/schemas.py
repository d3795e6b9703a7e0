"""Turn the schemas of an OpenAPI document into JSON Schema of one operation's arguments.

What an operation refers to becomes a definition of its own schema, so that a schema may contain itself.
Properties that only a service sets (``readOnly``) are left out.

Sources: "Schema Object" of the OpenAPI Specification 3.0.4 (a dialect of its own: ``nullable``, exclusive
bounds as booleans, nothing beside ``$ref``) and 3.1.1 (JSON Schema 2020-12).
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from proxy.schemas.portable import LISTS, SINGLE
from proxy.tools.mcp.definitions import MAX_SHOWN, UnusableDefinition
from proxy.tools.openapi.document import Document, texts_of

_MOST_PARTS: Final = 5000
"""The most schemas that one operation may have; a schema for a model has 64 KiB."""

_DEEPEST: Final = 32
_MAPS: Final = ("properties", "patternProperties", "dependentSchemas")
_KEPT: Final = (
    *("type", "enum", "const", "default", "multipleOf", "maximum", "minimum", "exclusiveMaximum"),
    *("exclusiveMinimum", "maxLength", "minLength", "pattern", "maxItems", "minItems", "uniqueItems"),
    *("maxProperties", "minProperties", "required", "minContains", "maxContains", "dependentRequired"),
)
"""Keywords that stay as they are. ``title`` and ``xml``, for example, tell a model nothing."""

_FORMATS: Final = frozenset(
    ("date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uri", "uuid")
)
"""The formats that tell a model something; ``int64`` and ``binary`` do not."""

_OWN_BASES: Final = ("$id", "$anchor", "$dynamicRef", "$dynamicAnchor")
_UNNAMED = re.compile(r"[^A-Za-z0-9_.-]")


class Schemas:
    """The schemas of one operation; :meth:`definitions` has those that they refer to."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._names: dict[str, str] = {}
        self._parts = 0

    def convert(self, schema: Any) -> Any:
        """Return a schema in JSON Schema. Raises :class:`UnusableDefinition` if that is impossible."""
        return self._converted(schema, 0, frozenset())

    def definitions(self) -> dict[str, Any]:
        """Return the schemas that the converted ones refer to, by their names in ``$defs``."""
        made: dict[str, Any] = {}
        while waiting := [(ref, name) for ref, name in self._names.items() if name not in made]:
            for reference, name in waiting:
                made[name] = self.convert(self._document.at(reference))
        return made

    def fields(self, schema: Any) -> set[str]:
        """Return the names of the properties that an object of a converted schema may have."""
        definitions, names = self.definitions(), set[str]()
        waiting, seen = [schema], set[str]()
        while waiting:
            one = waiting.pop()
            if not isinstance(one, Mapping):
                continue
            names.update(one.get("properties", ()))
            for word in ("allOf", "anyOf", "oneOf"):
                waiting += one.get(word, ())
            reference = str(one.get("$ref", ""))
            if reference and reference not in seen:
                seen.add(reference)
                waiting.append(definitions.get(reference.removeprefix("#/$defs/")))
        return names

    def _converted(self, schema: Any, depth: int, hidden: frozenset[str]) -> Any:
        """Return a schema that is nested ``depth`` deep; ``hidden`` are properties that are left out."""
        self._parts += 1
        self._document.count(1 + (len(schema) if isinstance(schema, Mapping) else 0))
        if self._parts > _MOST_PARTS:
            raise UnusableDefinition(f"its schemas have more than {_MOST_PARTS} parts")
        if depth > _DEEPEST:
            raise UnusableDefinition("its schemas are nested too deeply")
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, Mapping):
            raise UnusableDefinition("one of its schemas is not an object")
        if any(base in schema for base in _OWN_BASES):
            raise UnusableDefinition("one of its schemas has $id, $anchor or $dynamicRef")
        reference = schema.get("$ref")
        if isinstance(reference, str):
            beside = {"description": schema.get("description")} if self._document.is_3_0 else schema
            rest = self._keywords({k: v for k, v in beside.items() if k != "$ref"}, depth, hidden)
            return {"$ref": f"#/$defs/{self._name(reference)}", **rest}
        made = self._keywords(schema, depth, hidden)
        return _from_3_0(schema, made) if self._document.is_3_0 else made

    def _keywords(self, schema: Mapping[str, Any], depth: int, hidden: frozenset[str]) -> dict[str, Any]:
        hidden |= frozenset(self._read_only(schema))
        made: dict[str, Any] = {key: schema[key] for key in _KEPT if key in schema}
        if isinstance(about := schema.get("description"), str) and about.strip():
            made["description"] = about.strip()[:MAX_SHOWN]
        if isinstance(form := schema.get("format"), str) and form in _FORMATS:
            made["format"] = form
        if isinstance(example := schema.get("example"), str | int | float):
            made["examples"] = [example]
        for key in _MAPS:
            if isinstance(schema.get(key), Mapping):
                made[key] = {
                    name: self._converted(part, depth + 1, frozenset())
                    for name, part in texts_of(schema[key])
                    if key != "properties" or name not in hidden
                }
        for key in LISTS:
            if isinstance(schema.get(key), list):
                below = hidden if key == "allOf" else frozenset()
                made[key] = [self._converted(part, depth + 1, below) for part in schema[key]]
        for key in SINGLE:
            if key in schema:
                made[key] = self._converted(schema[key], depth + 1, frozenset())
        if hidden and isinstance(made.get("required"), list):
            made["required"] = [name for name in made["required"] if name not in hidden]
            if not made["required"]:
                del made["required"]
        return made

    def _read_only(self, schema: Mapping[str, Any]) -> Iterator[str]:
        """Yield the names of an object's properties that only the service sets, also those that the parts of
        its ``allOf`` declare."""
        parts = schema.get("allOf")
        for part in (schema, *(parts if isinstance(parts, list) else ())):
            for name, declared in texts_of(self._document.followed(part).get("properties")):
                if (
                    isinstance(declared, Mapping)
                    and self._document.followed(declared).get("readOnly") is True
                ):
                    yield name

    def _name(self, reference: str) -> str:
        """Return the name of what a reference leads to, in the operation's own ``$defs``."""
        if reference not in self._names:
            own = _UNNAMED.sub("_", reference.rpartition("/")[2])[:60] or "schema"
            self._document.count(len(self._names))
            taken = set(self._names.values())
            number = 2
            name = own
            while name in taken:
                name, number = f"{own}_{number}", number + 1
            self._names[reference] = name
        return self._names[reference]


def _from_3_0(schema: Mapping[str, Any], made: dict[str, Any]) -> dict[str, Any]:
    """Return a converted schema whose keywords mean in JSON Schema what they mean in version 3.0."""
    for exclusive, bound in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if isinstance(made.get(exclusive), bool):
            excludes = made.pop(exclusive)
            if excludes and bound in made:
                made[exclusive] = made.pop(bound)
    if schema.get("nullable") is not True:
        return made
    if isinstance(made.get("type"), str):
        made["type"] = [made["type"], "null"]
        if isinstance(made.get("enum"), list) and None not in made["enum"]:
            made["enum"] = [*made["enum"], None]
        return made
    about = {"description": made.pop("description")} if "description" in made else {}
    return {"anyOf": [made, {"type": "null"}], **about} if made else about
