"""Compare two versions of a definition for a person: line by line, with invisible characters made visible."""

import difflib
import json
from collections.abc import Sequence

from proxy.plain_text import plain_text
from proxy.tools.mcp.definitions import Definition

__all__ = ["difference"]

_MAX_LINE = 1000
_MOST_COMPARED = 2000
"""The most lines of each version; the time for many equal lines grows with the square of their number."""


def difference(before: Definition, now: Definition, most: int) -> Sequence[str]:
    """Return at most ``most`` changed lines, each with ``-`` or ``+`` in front, and a line about the rest."""
    texts = [
        json.dumps(one.written(), indent=1, sort_keys=True, ensure_ascii=False).split("\n")[:_MOST_COMPARED]
        for one in (before, now)
    ]
    found = list(difflib.unified_diff(texts[0], texts[1], lineterm="", n=0))[2:]
    lines = [plain_text(line, _MAX_LINE) for line in found if not line.startswith("@@")]
    return lines[:most] + ([f"and {len(lines) - most} more lines"] if len(lines) > most else [])
