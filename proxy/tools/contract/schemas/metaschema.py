"""Check that a JSON Schema is itself valid, without loading ``jsonschema-rs`` for simple schemas.

Schemas that pydantic derives from a model use few keywords; this module checks those keywords itself, by the
metaschema of draft 2020-12.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from proxy.tools.contract.schemas.schema_library import invalid_path

_TYPES = frozenset({"array", "boolean", "integer", "null", "number", "object", "string"})


def find_invalid(schema: Mapping[str, Any]) -> str | None:
    """Return the dotted path of the first invalid part, ``""`` for the whole schema; ``None`` if it is valid.

    The caller has checked that the schema is JSON and that its depth is bounded.
    """
    return None if is_plainly_valid(schema) else invalid_path(schema)


def is_plainly_valid(schema: Any) -> bool:
    """Return whether a schema is valid and uses only the keywords known here; ``False`` if in doubt."""
    if isinstance(schema, bool):
        return True
    if not isinstance(schema, dict):
        return False
    return all(keyword in _KEYWORDS and _KEYWORDS[keyword](value) for keyword, value in schema.items())


def _are_named(value: Any) -> bool:
    return isinstance(value, dict) and all(map(is_plainly_valid, value.values()))


def _are_listed(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(map(is_plainly_valid, value))


def _is_type(value: Any) -> bool:
    if isinstance(value, list):
        return bool(value) and _are_distinct(value) and _TYPES.issuperset(value)
    return isinstance(value, str) and value in _TYPES


def _are_distinct(value: Any) -> bool:
    """Return whether this is a list of strings without duplicates."""
    texts = isinstance(value, list) and all(isinstance(item, str) for item in value)
    return texts and len(set(value)) == len(value)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_anything(value: Any) -> bool:
    return True


_KEYWORDS: Mapping[str, Callable[[Any], bool]] = MappingProxyType(
    {
        **dict.fromkeys(("description", "format", "pattern", "title"), _is_text),
        **dict.fromkeys(("const", "default"), _is_anything),
        **dict.fromkeys(("enum", "examples"), _is_list),
        **dict.fromkeys(("exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum"), _is_number),
        **dict.fromkeys(("maxItems", "maxLength", "minItems", "minLength"), _is_count),
        **dict.fromkeys(("deprecated", "readOnly", "uniqueItems", "writeOnly"), _is_flag),
        **dict.fromkeys(("$defs", "properties"), _are_named),
        **dict.fromkeys(("allOf", "anyOf", "oneOf", "prefixItems"), _are_listed),
        **dict.fromkeys(("additionalProperties", "items", "not"), is_plainly_valid),
        "$ref": _is_text,
        "required": _are_distinct,
        "type": _is_type,
    }
)
