"""Usage: what an upstream reports of it, and the sum over several turns."""

from collections.abc import Mapping
from typing import Any

from proxy.events import Usage

__all__ = ["add_usage", "read_usage", "usage_of", "without_null_usage"]

_NULLS = (b',"usage":null', b', "usage": null')


def usage_of(payload: Mapping[str, Any]) -> Usage | None:
    """The usage that an event or a reply reports, wherever the provider puts it; ``None`` for none.

    On Chat it is a member, at one provider inside ``x_groq``; an event of Responses has it in the
    response that it tells of.
    """
    native = payload.get("usage")
    if native is None and "response" not in payload and "x_groq" not in payload:
        return None
    for inner in ("response", "x_groq"):
        if not isinstance(native, dict) and inner in payload:
            holder = payload[inner]
            native = holder.get("usage") if isinstance(holder, dict) else None
    return read_usage(native) if isinstance(native, dict) else None


def read_usage(native: Mapping[str, Any]) -> Usage:
    """A usage object in the names of Chat (``prompt_tokens``) or of Responses (``input_tokens``)."""
    received, details = "input_tokens", native.get("input_tokens_details")
    if received not in native:
        received, details = "prompt_tokens", native.get("prompt_tokens_details")
    sent = "output_tokens" if "output_tokens" in native else "completion_tokens"
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    if cached is None:
        cached = native.get("prompt_cache_hit_tokens")  # DeepSeek's name
    return Usage(
        _count(native.get(received)),
        _count(native.get(sent)),
        _count(native.get("total_tokens")),
        native,
        _count(cached),
    )


def _count(value: Any) -> int:
    return value if type(value) is int and value > 0 else 0


def without_null_usage(data: bytes) -> bytes:
    """Bytes of JSON without the usages that are null, as nearly everybody writes them.

    Inside a string the quotes would be escaped, so what is taken out can only be members.
    """
    if b'"usage"' in data:
        for null in _NULLS:
            data = data.replace(null, b"")
    return data


def add_usage(total: Mapping[str, Any], turn: Mapping[str, Any]) -> dict[str, Any]:
    """The sum of two usage objects, field by field, nested details too.

    Each field is added by itself: some providers' totals count reasoning that no other field
    shows.  A field that is missing or no number on one side keeps the other's value.
    """
    summed = dict(total)
    for key, value in turn.items():
        known = summed.get(key)
        if isinstance(value, Mapping):
            summed[key] = add_usage(known if isinstance(known, Mapping) else {}, value)
        elif _is_number(value) and _is_number(known):
            summed[key] = known + value
        elif value is not None:
            summed[key] = value
    return summed


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
