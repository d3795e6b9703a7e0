"""Chat Completions: reads single chunks of a stream."""

from collections.abc import Mapping
from typing import Any

__all__ = ["choices_of", "labels_of", "says_role", "shown_indices", "unknown_members"]

_STANDARD = frozenset(
    {"id", "object", "created", "model", "choices", "usage", "system_fingerprint", "service_tier", "error"}
)


def unknown_members(payload: Mapping[str, Any]) -> dict[str, Any]:
    """Return the members of a chunk that the proxy does not know; usually there are none."""
    if _STANDARD.issuperset(payload):
        return {}
    return {key: value for key, value in payload.items() if key not in _STANDARD}


def labels_of(payload: Mapping[str, Any]) -> dict[str, Any]:
    """Return the chunk's service tier and fingerprint; clients keep the last ones they see."""
    return {key: payload[key] for key in ("service_tier", "system_fingerprint") if key in payload}


def choices_of(payload: Mapping[str, Any]) -> list[dict[str, Any]]:
    choices = payload.get("choices")
    return [choice for choice in choices if type(choice) is dict] if type(choices) is list else []


def says_role(payload: Mapping[str, Any]) -> bool:
    for choice in choices_of(payload)[:1]:
        delta = choice.get("delta")
        return isinstance(delta, dict) and bool(delta.get("role"))
    return False


def shown_indices(payload: Mapping[str, Any]) -> dict[str, int]:
    """Return the index of every call in a chunk, by call id."""
    found = {}
    for choice in choices_of(payload):
        delta = choice.get("delta")
        calls = delta.get("tool_calls") if isinstance(delta, dict) else None
        for call in calls if isinstance(calls, list) else ():
            if isinstance(call, dict) and type(call.get("index")) is int:
                found[str(call.get("id"))] = call["index"]
    return found
