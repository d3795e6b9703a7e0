"""Digests that distinguish hidden turns behind the same answer, by their calls and results.

Call ids, signatures and reasoning differ each time a model answers, even if it does the same again. So they
are left out, and the newest turns represent all that are otherwise equal.
"""

import hashlib
from collections.abc import Mapping
from typing import Any, Final

import orjson

from proxy.json.splice import members
from proxy.wires.dialect import NATIVE
from proxy.wires.registry.table import BY_WIRE
from proxy.wires.turn.digest import canonical_arguments

_TURNS: Final = tuple(dialect.turns for dialect in BY_WIRE.values())
_IDS: Final = frozenset({"client_id"}).union(*(turns.ids for turns in _TURNS))
_VOLATILE: Final = frozenset[str]().union(*(turns.volatile for turns in _TURNS))
_REASONING: Final = frozenset[str]().union(*(turns.reasoning for turns in _TURNS))
_LISTS: Final = frozenset[str]().union(*(turns.lists for turns in _TURNS))


def variant_of(payload: bytes, seen: str = "") -> str:
    """Return a digest, in hexadecimal, of the output of an editor's ``suspend`` and of ``seen``, the text's
    digest."""
    ids: dict[str, int] = {}
    reduced = {}
    for name, raw in members(payload).items():
        if name == NATIVE:  # The upstream's own form, with signatures.
            continue
        value = orjson.loads(raw)
        if isinstance(value, list):
            value = [made for each in value if (made := _entry(each, ids)) is not None]
        reduced[name] = value
    written = orjson.dumps(reduced, option=orjson.OPT_SORT_KEYS)
    return hashlib.blake2b(written + seen.encode(), digest_size=16).hexdigest()


def _entry(entry: Any, ids: dict[str, int]) -> Any:
    """Reduce a message or an item as JSON text, or a kept call with its result; see :func:`_reduced`."""
    if isinstance(entry, str):
        return _reduced(orjson.loads(entry), ids)
    if isinstance(entry, dict) and isinstance(entry.get("result"), str):
        entry = {**entry, "result": _entry(entry["result"], ids)}
    return _reduced(entry, ids)


def _reduced(value: Any, ids: dict[str, int]) -> Any:
    """Return the value without reasoning, and with its ids numbered in the order of their appearance.

    Only the dialect's own ids are replaced: an id in the arguments or the result of a call is content.
    """
    if not isinstance(value, dict):
        return value
    if value.get("type") in _REASONING:
        return None
    kept: dict[str, Any] = {}
    for key, member in value.items():
        if key in _VOLATILE:
            continue
        if key in _IDS and isinstance(member, str):
            kept[key] = ids.setdefault(member, len(ids))
        elif key in _LISTS and isinstance(member, list):
            parts = [_part(part, ids) for part in member]
            kept[key] = [part for part in parts if part is not None]
        else:
            kept[key] = canonical_arguments(member) if key == "arguments" else member
    return kept


def _part(part: Any, ids: dict[str, int]) -> Any:
    """Reduce a call in a list of calls, or a block of content."""
    made = _reduced(part, ids)
    function = made.get("function") if isinstance(made, dict) else None
    if isinstance(function, Mapping):
        made["function"] = {**function, "arguments": canonical_arguments(function.get("arguments"))}
    return made
