"""Show a definition to a person, whole, and compare two versions of it line by line.

A model reads every text of a schema: names, descriptions at any depth, values, examples. So all of it is
shown, nothing is cut, and invisible characters are written out.
"""

import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from proxy.base.plain_text import plain_text
from proxy.tools.mcp.definitions import Definition

_MOST_COMPARED = 2000
"""The most lines of each version; the time for many equal lines grows with the square of their number."""


def shown_text(text: str) -> str:
    """Return a whole text on one line, with invisible characters as escapes."""
    return plain_text(text, len(text))


def shown_lines(value: Any) -> list[str]:
    """Return a JSON value as lines, whole, with the invisible characters of its texts as escapes."""
    return list(_lines(value, "", "", ""))


def difference(before: Definition, now: Definition, most: int) -> Sequence[str]:
    """Return at most ``most`` changed lines, each with ``-`` or ``+`` in front, and a line about the rest."""
    texts = [shown_lines(definition.written()) for definition in (before, now)]
    old, new = (lines[:_MOST_COMPARED] for lines in texts)
    changes = list(difflib.unified_diff(old, new, lineterm="", n=0))[2:]
    lines = [line for line in changes if not line.startswith("@@")]
    shown = lines[:most] + ([f"and {len(lines) - most} more lines"] if len(lines) > most else [])
    if max(map(len, texts)) > _MOST_COMPARED:
        shown.append(f"lines after the first {_MOST_COMPARED} were not compared")
    return shown


def _lines(value: Any, indent: str, head: str, tail: str) -> Iterator[str]:
    """Yield the lines of a value; ``head`` is its name, ``tail`` the comma after it."""
    if isinstance(value, Mapping) and value:
        parts = [(f"{_scalar(key)}: ", value[key]) for key in sorted(value)]
        opening, closing = "{", "}"
    elif isinstance(value, list) and value:
        parts = [("", child) for child in value]
        opening, closing = "[", "]"
    else:
        yield f"{indent}{head}{_scalar(value)}{tail}"
        return
    yield f"{indent}{head}{opening}"
    for place, (name, child) in enumerate(parts, 1):
        yield from _lines(child, f"{indent} ", name, "," if place < len(parts) else "")
    yield f"{indent}{closing}{tail}"


def _scalar(value: Any) -> str:
    if isinstance(value, str):
        quoted = shown_text(value).replace('"', '\\"')
        return f'"{quoted}"'
    return json.dumps(value)
