"""Reads the usage that an upstream reports, and adds up the usage of several turns."""

from collections.abc import Mapping
from typing import Any

from proxy.base.events import Usage

_CACHED = ("cache_creation_input_tokens", "cache_read_input_tokens")
"""The token counts that Messages does not include in ``input_tokens``."""

_OTHER_CACHED = ("prompt_cache_hit_tokens", "cached_tokens")
"""The names of DeepSeek and Moonshot for cached tokens, which stand in the usage object itself."""

_COUNTS = ("prompt_eval_count", "eval_count")
"""The members with Ollama's token counts. They stand directly in the last line of an answer."""
_COUNTED = (*_COUNTS, "total_duration", "load_duration", "prompt_eval_duration", "eval_duration")

_INNER = ("response", "x_groq", "message")
_HOLDERS = frozenset((*_INNER, *_COUNTS))
"""The members in which there may be usage, beside ``usage`` itself."""

_NULLS = (b',"usage":null', b', "usage": null')


def usage_of(payload: Mapping[str, Any]) -> Usage | None:
    """Return the usage that an event or a reply reports, wherever the provider puts it; ``None`` if none.

    Chat has it in a member; one provider nests it in ``x_groq``, and Moonshot in the choice of the last chunk
    (https://platform.moonshot.ai/docs/api/chat). An event of Responses has it in its ``response``, the first
    event of Messages in its ``message``. Ollama has no member for it.
    """
    native = payload.get("usage")
    if native is None:
        choices = payload.get("choices")
        if choices and type(choices) is list and type(choices[0]) is dict:
            native = choices[0].get("usage")
        if native is None and payload.keys().isdisjoint(_HOLDERS):
            return None
    for inner in _INNER:
        if not isinstance(native, dict) and inner in payload:
            holder = payload[inner]
            native = holder.get("usage") if isinstance(holder, dict) else None
    if isinstance(native, dict):
        return read_usage(native)
    return counted_usage(payload) if "eval_count" in payload or "prompt_eval_count" in payload else None


def read_usage(native: Mapping[str, Any]) -> Usage:
    """Return the usage from an object with the names of Chat (``prompt_tokens``), Responses or Messages."""
    received, details = "input_tokens", native.get("input_tokens_details")
    if received not in native:
        received, details = "prompt_tokens", native.get("prompt_tokens_details")
    elif details is None and "total_tokens" not in native and any(name in native for name in _CACHED):
        return messages_usage(native)
    sent, spent = "output_tokens", native.get("output_tokens_details")
    if sent not in native:
        sent, spent = "completion_tokens", native.get("completion_tokens_details")
    if not isinstance(details, dict):
        details = {}
    cached = details.get("cached_tokens")
    for name in _OTHER_CACHED:
        if cached is None:
            cached = native.get(name)
    counts = _count(native.get(received)), _count(native.get(sent))
    return Usage(
        *counts,
        # WIRE: some servers leave it out.
        _count(native.get("total_tokens")) or sum(counts),
        native,
        _count(cached),
        _count(spent.get("reasoning_tokens")) if isinstance(spent, dict) else 0,
        _count(details.get("cache_write_tokens")),
    )


def messages_usage(native: Mapping[str, Any]) -> Usage:
    """Return the usage from an object of Messages, which counts cached tokens apart and has no total."""
    written, cached = [_count(native.get(name)) for name in _CACHED]
    received = _count(native.get("input_tokens")) + written + cached
    sent = _count(native.get("output_tokens"))
    spent = native.get("output_tokens_details")
    thought = _count(spent.get("thinking_tokens")) if isinstance(spent, dict) else 0
    return Usage(received, sent, received + sent, native, cached, thought, written)


def counted_usage(payload: Mapping[str, Any]) -> Usage:
    """Return the usage in the last line of an Ollama answer, with its durations in nanoseconds.

    WIRE: Ollama leaves out a count of 0, such as that of a prompt that was wholly cached.
    """
    native = {name: payload[name] for name in _COUNTED if name in payload}
    received, sent = [_count(payload.get(name)) for name in _COUNTS]
    return Usage(received, sent, received + sent, native)


def merge_usage(before: Mapping[str, Any], later: Mapping[str, Any]) -> dict[str, Any]:
    """Return two reports about one message as one. The later one wins, except for null fields.

    Messages sends one part in the first event and the rest in the last one.
    """
    return {**before, **{name: value for name, value in later.items() if value is not None}}


def _count(value: Any) -> int:
    return value if type(value) is int and value > 0 else 0


def without_null_usage(data: bytes) -> bytes:
    """Return JSON bytes without the ``usage`` members that are null, in the spellings that providers use.

    Inside a string the quotes would be escaped, so the removed bytes can only be members.
    """
    if b'"usage"' in data:
        for null in _NULLS:
            data = data.replace(null, b"")
    return data


def add_usage(total: Mapping[str, Any], turn: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sum of two usage objects, field by field, including nested details.

    Each field is added on its own: some providers' totals count reasoning that no other field shows. If a
    field is missing or not a number on one side, the sum keeps the other side's value.
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
