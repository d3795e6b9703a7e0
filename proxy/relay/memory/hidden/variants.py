"""Digests that distinguish hidden turns behind the same answer, by their calls and results.

Call ids, signatures and reasoning differ each time a model answers, even if it does the same again.  So they
are left out, and the newest turns represent all that are otherwise equal.
"""

import hashlib
from collections.abc import Mapping
from typing import Any, Final

import orjson

from proxy.json.splice import members
from proxy.wires.dialect import NATIVE
from proxy.wires.turn.digest import canonical_arguments

__all__ = ["variant_of"]

_IDS: Final = frozenset({"id", "call_id", "client_id", "tool_call_id", "tool_use_id"})
_VOLATILE: Final = frozenset(
    {
        *("reasoning", "reasoning_content", "reasoning_details", "reasoning_text", "thinking"),
        *("signature", "encrypted_content", "extra_content", "thought_signature", "status", "created_at"),
    }
)
_THINKING: Final = frozenset({"thinking", "redacted_thinking", "reasoning"})


def variant_of(payload: bytes, seen: str = "") -> str:
    """Return a digest, in hexadecimal, of the output of an editor's ``suspend`` and of ``seen``, the text's
    digest."""
    ids: dict[str, int] = {}
    told = {}
    for name, raw in members(payload).items():
        if name == NATIVE:  # The upstream's own form, with signatures.
            continue
        value = orjson.loads(raw)
        if isinstance(value, list):
            value = [said for each in value if (said := _entry(each, ids)) is not None]
        told[name] = value
    written = orjson.dumps(told, option=orjson.OPT_SORT_KEYS)
    return hashlib.blake2b(written + seen.encode(), digest_size=16).hexdigest()


def _entry(entry: Any, ids: dict[str, int]) -> Any:
    """Reduce a message or an item as JSON text, or a kept call with its result; see :func:`_said`."""
    if isinstance(entry, str):
        return _said(orjson.loads(entry), ids)
    if isinstance(entry, dict) and isinstance(entry.get("result"), str):
        entry = {**entry, "result": _entry(entry["result"], ids)}
    return _said(entry, ids)


def _said(said: Any, ids: dict[str, int]) -> Any:
    """Return the value without reasoning, and with its ids numbered in the order of their appearance.

    Only the dialect's own ids are replaced: an id in the arguments or the result of a call is content.
    """
    if not isinstance(said, dict):
        return said
    if said.get("type") in _THINKING:
        return None
    found: dict[str, Any] = {}
    for key, value in said.items():
        if key in _VOLATILE:
            continue
        if key in _IDS and isinstance(value, str):
            found[key] = ids.setdefault(value, len(ids))
        elif key in ("tool_calls", "content") and isinstance(value, list):
            parts = [_part(part, ids) for part in value]
            found[key] = [part for part in parts if part is not None]
        else:
            found[key] = canonical_arguments(value) if key == "arguments" else value
    return found


def _part(part: Any, ids: dict[str, int]) -> Any:
    """Reduce a call in a list of calls, or a block of content."""
    made = _said(part, ids)
    function = made.get("function") if isinstance(made, dict) else None
    if isinstance(function, Mapping):
        made["function"] = {**function, "arguments": canonical_arguments(function.get("arguments"))}
    return made
