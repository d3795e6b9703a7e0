"""What has changed in a definition, for a person: line by line, with what hides written out."""

import difflib
import json
from collections.abc import Sequence

from proxy.plain_text import plain_text
from proxy.tools.mcp.definitions import Definition

__all__ = ["difference"]

_MAX_LINE = 1000
_MOST_COMPARED = 2000
"""Lines of each; to compare many that are alike takes as long as the square of their number."""


def difference(before: Definition, now: Definition, most: int) -> Sequence[str]:
    """At most ``most`` lines, each with ``-`` or ``+`` before it, and one more if there are others."""
    texts = [
        json.dumps(one.written(), indent=1, sort_keys=True, ensure_ascii=False).split("\n")[:_MOST_COMPARED]
        for one in (before, now)
    ]
    found = list(difflib.unified_diff(texts[0], texts[1], lineterm="", n=0))[2:]
    lines = [plain_text(line, _MAX_LINE) for line in found if not line.startswith("@@")]
    return lines[:most] + ([f"and {len(lines) - most} more lines"] if len(lines) > most else [])
