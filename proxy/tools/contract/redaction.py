"""Redact a call for traces, logs and rows (rule T4).

An allowlist selects the shown parts of an output; a mask hides private arguments. The shown text is bounded,
so that a row cannot contain a whole page.
"""

import itertools
from collections.abc import Sequence
from functools import lru_cache
from operator import itemgetter
from typing import Any

import orjson
from msgspec import Struct

from proxy.base.caches import declare_lru
from proxy.base.plain_text import plain_text
from proxy.tools.contract.arguments import MAX_DEPTH, plain_kind
from proxy.tools.contract.schemas.schema import declares
from proxy.tools.contract.spec import Redaction, ToolSpec

MASK = "[private]"
_CUT = "[cut]"
_MAX_TEXT = 512
_MAX_DESCRIPTION = 120
_MAX_ITEMS = 64
_MAX_NODES = 512
_MAX_CHARACTERS = 8192
_MAX_DEPTH = 16
_BRIEF_NODES = 64
_BRIEF_CHARACTERS = 1024
_MOST_EXACT_BITS = 53
"""The size of the largest integers that every JSON parser keeps exactly (RFC 8259, section 6)."""
_MAX_MESSAGE = 65536
"""The characters of a failure's message that are searched; far more than is ever shown."""

_Tree = dict[str, "_Tree"]
_NOTHING: Any = object()


def redact_output(value: Any, redaction: Redaction) -> Any:
    """Return the allowlisted part of a tool's JSON output, bounded; ``None`` if nothing is allowed.

    An element of a list is reached only through ``*``. A path that names a whole object or list
    shows all of it. Text or a number as the whole output is shown only by ``("*",)``.
    """
    if not redaction.output:
        return None
    if "*" in redaction.output:
        return bounded(value)
    shown = _pick(value, _tree(tuple(redaction.output)), 0)
    return None if shown is _NOTHING else bounded(shown)


def redact_arguments(arguments: dict[str, Any], redaction: Redaction) -> Any:
    """Return the arguments with every private field masked, bounded."""
    tree = _tree(tuple(redaction.private_arguments))
    return bounded(_mask(arguments, tree, 0) if tree else arguments)


def mask_arguments(arguments: dict[str, Any], redaction: Redaction) -> Any:
    """Return the arguments with every private field masked and nothing cut, for a person who approves them.

    Integers that some JSON parsers would round become texts of their digits.
    """
    tree = _tree(tuple(redaction.private_arguments))
    return _exact(_mask(arguments, tree, 0) if tree else arguments)


def described(spec: ToolSpec | None, shown: Any) -> str | None:
    """Return what a call does, in the words of its tool, on one line; ``None`` if the tool has none.

    ``shown`` are the arguments with the private ones masked, so a description has no more than these. One
    that fails, for example since it formats a masked number, counts as none.
    """
    if spec is None or spec.describe is None or not isinstance(shown, dict):
        return None
    arguments = {**spec.defaults, **shown}
    describe = spec.describe
    try:
        text: Any = describe.format_map(arguments) if isinstance(describe, str) else describe(arguments)
    except Exception:  # noqa: BLE001  # The author's code; the name of the tool is shown in its place.
        return None
    return plain_text(" ".join(str(text).split()), _MAX_DESCRIPTION) or None


def redact_written(arguments: str, spec: ToolSpec) -> str:
    """Return a call's arguments, as the model wrote them, in a form that may be stored in the clear.

    Returns ``{}`` if they cannot be parsed or have a name that the schema does not: its value may be private.
    """
    if spec.redaction is None or not spec.redaction.private_arguments:
        return arguments
    try:
        decoded = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return "{}"
    if not isinstance(decoded, dict) or not declares(spec.parameters, decoded):
        return "{}"
    return orjson.dumps(redact_arguments(decoded, spec.redaction)).decode()


def mask_written(arguments: str) -> str:
    """Return what may be stored in the clear of the arguments of an unknown tool: only their size."""
    return orjson.dumps({MASK: f"{len(arguments)} characters"}).decode()


def private_values(redaction: Redaction, *arguments: dict[str, Any]) -> tuple[str, ...]:
    """Return every private value of these arguments as text, without duplicates.

    The size limit of arguments bounds the result.
    """
    values: list[str] = []
    tree = _tree(tuple(redaction.private_arguments))
    for each in arguments:
        _private(each, tree, values, 0)
    return tuple(dict.fromkeys(values))


def mask_values(message: str, values: Sequence[str]) -> str:
    """Return ``message`` with each of :func:`private_values` masked.

    A tool's author writes the message of a failure; masking keeps a mistake there from becoming a leak.
    The search uses the original message, so a value that is also part of the mask text does no harm.
    """
    if not values:
        return message
    message = message[:_MAX_MESSAGE]
    hidden = bytearray(len(message))
    for value in values:
        start = message.find(value)
        while start >= 0:
            hidden[start : start + len(value)] = b"\1" * len(value)
            start = message.find(value, start + 1)
    parts = (
        MASK if masked else "".join(character for character, _ in group)
        for masked, group in itertools.groupby(zip(message, hidden, strict=True), key=itemgetter(1))
    )
    return "".join(parts)


def bounded(value: Any) -> Any:
    """Return ``value`` with long texts, long lists and deep or many nodes cut; a mark shows each cut."""
    return _bounded(value, 0, _Room())


def brief(value: Any) -> Any:
    """Return much less than :func:`bounded` does: for the log line that each call writes."""
    return _bounded(value, 0, _Room(_BRIEF_NODES, _BRIEF_CHARACTERS))


class _Room(Struct):
    """The nodes and characters that may still be shown of one value."""

    nodes: int = _MAX_NODES
    characters: int = _MAX_CHARACTERS

    def text(self, text: str) -> str:
        """Return as much of ``text`` as there is room for."""
        size, left = len(text), self.characters
        # Comparisons, because ``min`` and ``max`` would take longer than all the rest.
        if size <= _MAX_TEXT and size <= left:
            self.characters = left - size
            return text
        shown = min(_MAX_TEXT, left)
        self.characters = left - shown
        return text[:shown] + _CUT


@lru_cache(maxsize=1024)
def _tree(paths: tuple[str, ...]) -> _Tree:
    """Return dotted paths as one tree, never changed; an empty node ends a path and includes all below it."""
    root: _Tree = {}
    for path in sorted(paths, key=lambda item: item.count(".")):
        node = root
        parts = path.split(".")
        for index, part in enumerate(parts):
            if part in node and not node[part]:
                break  # A shorter path already includes everything here.
            node = node.setdefault(part, {})
            if index == len(parts) - 1:
                node.clear()
    return root


declare_lru("redaction_paths", _tree, 32_000)


def _pick(value: Any, node: _Tree, depth: int) -> Any:
    """Return the part of ``value`` that ``node`` allows, or ``_NOTHING``."""
    if depth > _MAX_DEPTH:
        return _NOTHING
    if isinstance(value, dict):
        kept = {}
        for key, child in value.items():
            shown = _pick_child(child, node, str(key), depth)
            if shown is not _NOTHING:
                kept[key] = shown
        return kept
    if isinstance(value, list) and "*" in node:
        picked = (_pick_child(child, node, "*", depth) for child in value[: _MAX_ITEMS + 1])
        return [item for item in picked if item is not _NOTHING]
    return _NOTHING


def _pick_child(child: Any, node: _Tree, key: str, depth: int) -> Any:
    """Return the parts of one child that the branches ``key`` and ``*`` of ``node`` allow, merged."""
    branches = [node[name] for name in ((key,) if key == "*" else (key, "*")) if name in node]
    if {} in branches:  # A path ends here and includes all.
        return child
    shown: Any = _NOTHING
    for branch in branches:
        part = _pick(child, branch, depth + 1)
        if part is _NOTHING:
            continue
        shown = {**shown, **part} if isinstance(shown, dict) and isinstance(part, dict) else part
    return shown


def _mask(value: Any, node: _Tree, depth: int) -> Any:
    """Return ``value`` with everything that ``node`` names replaced by the mask.

    A scalar on the way to a private path is masked too, since it may contain the private value.
    """
    if depth > _MAX_DEPTH:
        return MASK
    if isinstance(value, dict):
        return {key: _mask_child(child, node, str(key), depth) for key, child in value.items()}
    if isinstance(value, list):
        return [_mask_child(child, node, "*", depth) for child in value]
    return value if value is None else MASK


def _mask_child(child: Any, node: _Tree, key: str, depth: int) -> Any:
    """Return one child, masked by every branch that names it."""
    for name in dict.fromkeys((key, "*")):
        if name in node:
            child = _mask(child, node[name], depth + 1) if node[name] else MASK
    return child


def _exact(value: Any) -> Any:
    """Recursive part of :func:`mask_arguments`; the parser of arguments bounds the depth."""
    kind = plain_kind(value)
    if kind is int and value.bit_length() > _MOST_EXACT_BITS:
        return str(value)
    if kind is dict:
        return {key: _exact(child) for key, child in value.items()}
    return [_exact(child) for child in value] if kind is list else value


def _private(value: Any, node: _Tree, texts: list[str], depth: int) -> None:
    """Collect, as text, the values at and below the private paths; an empty node includes all."""
    if depth > _MAX_DEPTH + MAX_DEPTH or (not node and depth == 0):
        return
    if isinstance(value, dict | list):
        children = value.items() if isinstance(value, dict) else (("*", child) for child in value)
        for key, child in children:
            for name in dict.fromkeys((key, "*")):
                if not node or name in node:
                    _private(child, node.get(name, {}), texts, depth + 1)
    elif not node and value not in (None, True, False, ""):
        texts.append(str(value))


def _bounded(value: Any, depth: int, room: _Room) -> Any:
    """Recursive part of :func:`bounded`."""
    room.nodes -= 1
    if room.nodes < 0 or depth > _MAX_DEPTH:
        return _CUT
    kind = plain_kind(value)
    if kind is str:
        return room.text(value)
    if kind is int and value.bit_length() > 63:
        return _CUT  # Too large for a database column or a fast JSON writer.
    if kind is dict:
        shown: dict[str, Any] = {}
        for index, (key, child) in enumerate(value.items()):
            if index >= _MAX_ITEMS or room.nodes <= 0:
                shown[_CUT] = _CUT
                break
            shown[room.text(str(key))] = _bounded(child, depth + 1, room)
        return shown
    if kind is list:
        items = []
        for index, child in enumerate(value):
            if index >= _MAX_ITEMS or room.nodes <= 0:
                items.append(_CUT)
                break
            items.append(_bounded(child, depth + 1, room))
        return items
    return value
