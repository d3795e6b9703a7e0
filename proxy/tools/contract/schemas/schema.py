"""Derive the JSON Schema for the wire from a pydantic model, and check that providers accept it.

The schema says what the language model may send; validation.py enforces it. A provider refuses a whole
request if it cannot read one tool's schema, and then no tool works. So the proxy checks each schema when
tools load, and names the path of the fault (rule T8).

OpenAI's guide to function calling and structured outputs has the requirements. The top level is a plain
object; in strict mode every object is closed and requires all of its fields.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import TypeAdapter
from pydantic.errors import PydanticInvalidForJsonSchema

from proxy.base.errors import ConfigError
from proxy.records.rows import ToolEffect
from proxy.schemas.portable import LISTS, MAPS, SINGLE, follow, subschemas
from proxy.tools.contract.schemas.metaschema import find_invalid
from proxy.tools.contract.schemas.schema_library import DEFAULT_DIALECT, is_known_dialect

MAX_SCHEMA_BYTES = 65536
MAX_SCHEMA_DEPTH = 32
MAX_SCHEMA_NODES = 250_000

_TOP_LEVEL_REFUSED = ("allOf", "anyOf", "enum", "not", "oneOf")
_HOLDERS = (dict, list)
_FIRST_KEYS = ("$ref", "type", "description", "enum", "const", "format", "properties", "required")
_LAST_KEYS = ("additionalProperties", "$defs")


def derive_schema(adapter: TypeAdapter[Any], where: str) -> dict[str, Any]:
    """Return the wire schema of a pydantic model: without ``title``, objects closed, keys in a fixed order.

    ``where`` names the tool in errors. Raises :class:`~proxy.base.errors.ConfigError` for a model that JSON
    Schema cannot express or that allows extra fields.
    """
    try:
        derived = adapter.json_schema(by_alias=True, mode="validation")
    except PydanticInvalidForJsonSchema as error:
        raise ConfigError(where, f"parameters: {str(error).splitlines()[0]}") from None
    if isinstance(derived.get("$ref"), str):
        # A recursive model: expand the top level, because no wire accepts a reference there.
        definitions = derived["$defs"]
        derived = {**definitions[derived["$ref"].rpartition("/")[2]], "$defs": definitions}
    derived.pop("description", None)  # The tool's own description has the same text; twice costs tokens.
    tidy: dict[str, Any] = _tidy(derived, "parameters", where)
    tidy.setdefault("properties", {})
    return tidy


def check_schema(schema: Any, where: str) -> None:
    """Raise ConfigError with the path of the first fault if a wire cannot carry ``schema``."""
    if not isinstance(schema, dict):
        raise ConfigError(where, "parameters: must be a dict that is a JSON Schema")
    if schema.get("type") != "object":
        raise ConfigError(where, 'parameters.type: must be "object" at the top level')
    for keyword in _TOP_LEVEL_REFUSED:
        if keyword in schema:
            raise ConfigError(
                where, f"parameters.{keyword}: no provider accepts this keyword at the top level"
            )
    try:
        _check_json(schema, "parameters", where, 1)
        text = json.dumps(schema, allow_nan=False)
    except ValueError:
        raise ConfigError(where, "parameters: cannot be written as JSON") from None
    if len(text) > MAX_SCHEMA_BYTES:
        raise ConfigError(where, f"parameters: larger than {MAX_SCHEMA_BYTES} bytes as JSON")
    for path, node in subschemas(schema, "parameters"):
        if "$ref" in node:
            resolve(schema, node["$ref"], f"{path}.$ref", where)
        if node.get("enum") == []:
            raise ConfigError(where, f"{path}.enum: has no value, so no argument would fit", "Leave it out")
        if isinstance(dialect := node.get("$schema"), str) and not is_known_dialect(dialect):
            raise ConfigError(
                where,
                f"{path}.$schema: is not a known dialect",
                f'Leave it out, or write "{DEFAULT_DIALECT}"',
            )
    _check_size(schema, where)
    invalid = find_invalid(schema)
    if invalid is not None:
        path = f"parameters.{invalid}" if invalid else "parameters"
        raise ConfigError(where, f"{path}: is not valid JSON Schema")


def property_names(schema: Mapping[str, Any]) -> frozenset[str]:
    """Return every field name that the schema itself declares, at any depth."""
    names: set[str] = set()
    for _, node in subschemas(schema, ""):
        if isinstance(node.get("properties"), Mapping):
            names.update(node["properties"])
    return frozenset(names)


def may_have(schema: Mapping[str, Any], path: str) -> bool:
    """Return whether arguments that fit the schema can have a value at a dotted path."""
    if schema.get("additionalProperties", True) is True:
        return True  # An open object may have any field.
    return _leads_somewhere(schema, path.split("."), schema, 0)


def union_width(schema: Mapping[str, Any]) -> int:
    """Return how many subschemas the widest union of a schema has, if a part of the schema refers to what it
    is in; else 0."""
    widths = [
        len(node[key])
        for _, node in subschemas(schema, "")
        for key in ("allOf", "anyOf", "oneOf")
        if isinstance(node.get(key), list)
    ]
    return max(widths, default=0) if _is_recursive(schema) else 0


def declares(schema: Mapping[str, Any], value: Any) -> bool:
    """Return whether the schema declares every object in ``value``, with all of its field names.

    Nothing else is checked here; the validator checks the values.
    """
    return _declares(schema, value, schema, {})


def check_private_paths(schema: Mapping[str, Any], paths: tuple[str, ...], where: str) -> None:
    """Raise ConfigError for a private argument path that names no field: a typing error would leak data."""
    for path in paths:
        if not _leads_somewhere(schema, path.split("."), schema, 0):
            raise ConfigError(
                where,
                f'redaction: the private argument "{path}" is not in the schema',
                'for the elements of a list, write "*"',
            )


def secret_paths(schema: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the dotted paths of the arguments whose type is secret, as pydantic writes ``SecretStr``.

    Below the point where a recursive model refers to itself, all counts as secret if anything is.
    """
    return tuple(dict.fromkeys(_secrets(schema, schema, "", ())))


def _secrets(node: Any, root: Mapping[str, Any], path: str, refs: tuple[object, ...]) -> Iterator[str]:
    """Recursive part of :func:`secret_paths`; ``refs`` are the definitions on the way down."""
    if not isinstance(node, Mapping):
        return
    if _is_secret(node):
        yield path
        return
    if "$ref" in node:
        ref = node["$ref"]
        if ref not in refs:
            yield from _secrets(resolve(root, ref, path, "redaction"), root, path, (*refs, ref))
        elif _holds_secret(root, ref):
            yield path
    for key in ("anyOf", "oneOf", "allOf"):
        for child in node.get(key) or ():
            yield from _secrets(child, root, path, refs)
    below = path and f"{path}."
    for name, child in (node.get("properties") or {}).items():
        # A path cannot express a name that contains a dot.
        yield from _secrets(child, root, below + ("*" if "." in name else name), refs)
    others = [node.get("items"), node.get("additionalProperties"), *(node.get("prefixItems") or ())]
    for child in (*others, *(node.get("patternProperties") or {}).values()):
        yield from _secrets(child, root, f"{below}*", refs)


def _is_secret(node: Mapping[str, Any]) -> bool:
    return node.get("writeOnly") is True and node.get("format") == "password"


def _holds_secret(root: Mapping[str, Any], ref: object) -> bool:
    """Return whether a definition, or one that it refers to, contains a secret."""
    known, waiting = {ref}, [ref]
    while waiting:
        for _, node in subschemas(resolve(root, waiting.pop(), "", "redaction"), ""):
            if _is_secret(node):
                return True
            if "$ref" in node and node["$ref"] not in known:
                known.add(node["$ref"])
                waiting.append(node["$ref"])
    return False


def check_output_paths(schema: Mapping[str, Any], paths: tuple[str, ...], where: str) -> None:
    """Raise ConfigError for an output path that names no field of the output model: it would show nothing."""
    for path in paths:
        if path != "*" and not _leads_somewhere(schema, path.split("."), schema, 0):
            raise ConfigError(
                where,
                f'redaction: the output "{path}" is not in the output model',
                'for the elements of a list, write "*"',
            )


def spec_digest(name: str, description: str, parameters: Mapping[str, Any], effect: ToolEffect) -> str:
    """Return the SHA-256, in hex, of what a model sees of a tool, and of its effect (rule T9)."""
    text = json.dumps([name, description, parameters, effect.value], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def resolve(root: Mapping[str, Any], ref: Any, path: str, where: str) -> Mapping[str, Any]:
    """Return the subschema that a ``$ref`` names; raise ConfigError unless it is in the same document."""
    if not isinstance(ref, str) or not ref.startswith("#"):
        raise ConfigError(where, f"{path}: a reference must stay within the schema, like #/$defs/NAME")
    node = follow(root, ref)
    if node is None:
        raise ConfigError(where, f"{path}: refers to nothing in the schema")
    return node


def _tidy(node: Any, path: str, where: str) -> Any:
    """Return a subschema without titles and with ordered keys; an object with fields is closed."""
    if not isinstance(node, dict):
        return node
    tidy: dict[str, Any] = {}
    for key, value in node.items():
        if key == "title":
            continue
        if key in MAPS and isinstance(value, dict):
            tidy[key] = {name: _tidy(child, f"{path}.{key}.{name}", where) for name, child in value.items()}
        elif key in LISTS and isinstance(value, list):
            tidy[key] = [_tidy(child, f"{path}.{key}[{index}]", where) for index, child in enumerate(value)]
        elif key in SINGLE:
            tidy[key] = _tidy(value, f"{path}.{key}", where)
        else:
            tidy[key] = value
    if tidy.get("type") == "object" and ("properties" in tidy or path == "parameters"):
        if tidy.get("additionalProperties", False) is not False:
            raise ConfigError(
                where, f"{path}: the model allows extra fields", "use a field of type dict for open data"
            )
        tidy["additionalProperties"] = False
    first = [key for key in _FIRST_KEYS if key in tidy]
    last = [key for key in _LAST_KEYS if key in tidy]
    return {key: tidy[key] for key in [*first, *(k for k in tidy if k not in (*first, *last)), *last]}


def _check_json(value: Any, path: str, where: str, depth: int) -> None:
    """Raise ConfigError for what is not JSON (a tuple, a date, a key that is no text) or nests too deeply."""
    if depth > MAX_SCHEMA_DEPTH:
        raise ConfigError(where, f"{path}: nested deeper than {MAX_SCHEMA_DEPTH} levels")
    if isinstance(value, dict):
        for key, child in value.items():
            if not isinstance(key, str):
                raise ConfigError(where, f"{path}: a key is not text")
            _check_json(child, f"{path}.{key}", where, depth + 1)
    elif isinstance(value, list):
        for index, child in enumerate(value):
            _check_json(child, f"{path}[{index}]", where, depth + 1)
    elif value is not None and not isinstance(value, str | int | float | bool):
        raise ConfigError(where, f"{path}: {type(value).__name__} is not a JSON type")


def _is_recursive(schema: Mapping[str, Any]) -> bool:
    """Return whether a reference leads to a part that contains it; a dynamic reference counts as such."""
    around: set[int] = set()
    done: set[int] = set()

    def leads_back(node: Any) -> bool:
        if not isinstance(node, _HOLDERS) or id(node) in done:
            return False
        if id(node) in around:
            return True
        around.add(id(node))
        below = list(node.values() if isinstance(node, dict) else node)
        if isinstance(node, dict):
            if not node.keys().isdisjoint(("$dynamicRef", "$recursiveRef")):
                return True
            if isinstance(node.get("$ref"), str):
                below.append(resolve(schema, node["$ref"], "$ref", ""))
        leads = any(map(leads_back, below))
        around.discard(id(node))
        done.add(id(node))
        return leads

    return leads_back(schema)


def _check_size(schema: Mapping[str, Any], where: str) -> None:
    """Raise ConfigError if references multiply: a few lines of them can make one check take hours."""
    sizes: dict[int, int] = {}
    open_nodes: set[int] = set()

    def size_of(node: Any) -> int:
        """Count the nodes with every reference expanded; a recursive one is expanded once."""
        if not isinstance(node, dict | list) or id(node) in open_nodes:
            return 1
        if id(node) not in sizes:
            open_nodes.add(id(node))
            size = 1 + sum(map(size_of, node.values() if isinstance(node, dict) else node))
            if isinstance(node, dict) and isinstance(node.get("$ref"), str):
                size += size_of(resolve(schema, node["$ref"], "$ref", where))
            open_nodes.discard(id(node))
            sizes[id(node)] = size
        return sizes[id(node)]

    try:
        size = size_of({key: value for key, value in schema.items() if key not in ("$defs", "definitions")})
    except RecursionError:
        size = MAX_SCHEMA_NODES + 1
    if size > MAX_SCHEMA_NODES:
        raise ConfigError(where, f"parameters: more than {MAX_SCHEMA_NODES} parts with its references")


def _declares(
    node: Any, value: Any, root: Mapping[str, Any], known: dict[tuple[int, int], bool | None]
) -> bool:
    """Recursive part of :func:`declares`.

    ``known`` caches the answer for each subschema and value, because a union in a recursive model would ask
    exponentially often. ``None`` marks a question in progress; it counts as yes, since a schema that only
    refers to itself forbids nothing.
    """
    if not isinstance(value, _HOLDERS) or not isinstance(node, Mapping):
        return True
    place = (id(node), id(value))
    if place not in known:
        known[place] = None
        known[place] = _declares_here(node, value, root, known)
    return known[place] is not False


def _declares_here(
    node: Mapping[str, Any],
    value: dict[str, Any] | list[Any],
    root: Mapping[str, Any],
    known: dict[tuple[int, int], bool | None],
) -> bool:
    """Return whether one subschema declares one object or list and what is in it."""

    def fits(child: Any, part: Any) -> bool:
        return _declares(child, part, root, known)

    if isinstance(node.get("$ref"), str):
        return fits(resolve(root, node["$ref"], "$ref", ""), value)
    for key in ("anyOf", "oneOf"):
        if key in node:
            return any(fits(branch, value) for branch in node[key])
    if not all(fits(part, value) for part in node.get("allOf", ())):
        return False
    kinds = node.get("type", ())
    if kinds and ("object" if isinstance(value, dict) else "array") not in (
        (kinds,) if isinstance(kinds, str) else kinds
    ):
        return False
    if isinstance(value, list):
        first = node.get("prefixItems", ())
        rest = node.get("items")
        return all(
            fits(first[index] if index < len(first) else rest, part) for index, part in enumerate(value)
        )
    fields = node.get("properties", {})
    patterns = list(node.get("patternProperties", {}).values())
    open_to = node.get("additionalProperties", True)
    for name, part in value.items():
        below = [fields[name]] if name in fields else patterns or [open_to]
        if below == [False]:
            return False
        if isinstance(part, _HOLDERS) and not any(fits(child, part) for child in below):
            return False
    return True


def _leads_somewhere(node: Any, parts: list[str], root: Mapping[str, Any], depth: int) -> bool:
    """Return whether a dotted path names a field of the schema."""
    if not parts:
        return True
    if not isinstance(node, Mapping) or depth > MAX_SCHEMA_DEPTH:
        return False
    if isinstance(node.get("$ref"), str):
        return _leads_somewhere(resolve(root, node["$ref"], "$ref", ""), parts, root, depth + 1)
    for key in LISTS:
        if any(_leads_somewhere(part, parts, root, depth + 1) for part in node.get(key, [])):
            return True
    head, rest = parts[0], parts[1:]
    below: list[Any] = []
    if isinstance(node.get("properties"), Mapping):
        fields = node["properties"]
        below += list(fields.values()) if head == "*" else [fields[head]] if head in fields else []
    if isinstance(node.get("additionalProperties"), Mapping):
        below.append(node["additionalProperties"])
    if head == "*":
        below.append(node.get("items"))
    return any(child is not None and _leads_somewhere(child, rest, root, depth + 1) for child in below)
