"""Which schemas of tools Anthropic takes with ``strict``: a smaller part of JSON Schema than OpenAI's.

Sources: ``ToolParam.strict`` and ``lib/_parse/_transform.py`` of the ``anthropic`` package; "JSON Schema
limitations" in https://platform.claude.com/docs/en/build-with-claude/structured-outputs; "tools.25.custom:
For 'integer' type, properties maximum, minimum are not supported" (github.com/earendil-works/pi/issues/9953).
"""

from collections.abc import Mapping
from typing import Any, Final

from proxy.schemas.portable import follow, subschemas

__all__ = ["takes_strict"]

_KEYWORDS: Final = frozenset(
    {
        *("$defs", "$ref", "$schema", "additionalProperties", "anyOf", "const", "default", "definitions"),
        *("description", "enum", "format", "items", "minItems", "properties", "required", "title", "type"),
    }
)
_FORMATS: Final = frozenset(
    {"date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uri", "uuid"}
)
_COUNTS: Final = (0, 1)


def takes_strict(schema: Mapping[str, Any]) -> bool:
    """Return whether a strict tool may have this schema."""
    return all(_fits(node) for _, node in subschemas(schema, "")) and not _is_recursive(schema)


def _fits(node: Mapping[str, Any]) -> bool:
    is_open = node.get("type") == "object" and node.get("additionalProperties") is not False
    return (
        node.keys() <= _KEYWORDS
        and not is_open
        and node.get("format", "uuid") in _FORMATS
        and node.get("minItems", 0) in _COUNTS
    )


def _is_recursive(schema: Mapping[str, Any]) -> bool:
    """Return whether a reference leads to a part that holds it, or to nothing."""
    targets = {node["$ref"] for _, node in subschemas(schema, "") if isinstance(node.get("$ref"), str)}
    below = {ref: _references(follow(schema, ref)) for ref in targets}
    for ref in targets:
        found, waiting = set[str](), [ref]
        while waiting:
            for one in below[waiting.pop()]:
                if one == ref:
                    return True
                if one not in found:
                    found.add(one)
                    waiting.append(one)
    return False


def _references(node: Mapping[str, Any] | None) -> set[str]:
    parts = subschemas(node, "") if node is not None else ()
    return {part["$ref"] for _, part in parts if isinstance(part.get("$ref"), str)}
