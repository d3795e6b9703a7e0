"""Whether the proxy reads the calls of a line as every client does.

Ollama's own client is written in Go, whose ``encoding/json`` matches the names of members in any case, and
merges members that come twice.  So such a client can find a call where a parser of exact names, which takes
the last of two members, finds none.  Source: Go's documentation of ``encoding/json``, ``Unmarshal``.
"""

import json
import re
from typing import Any, Final

__all__ = ["calls_are_plain"]

_MAY_NAME_CALLS: Final = re.compile(rb"(?i)tool_call(?:s|\xc5\xbf)|\\u(?:00[4-7]|017f|212a)")
"""The name in any case, with Unicode's long s, which counts as an s, and letters as escapes."""
_NAMES: Final = frozenset({"message", "tool_calls", "function", "name", "arguments", "id", "error"})


class _Members(list[tuple[str, Any]]):
    """The members of an object in their order, also those that come twice."""


def calls_are_plain(line: bytes) -> bool:
    """Return whether each call of a line, or of a whole reply, is where it belongs and under exact names.

    Return ``False`` if this cannot be known.
    """
    if _MAY_NAME_CALLS.search(line) is None:
        return True
    try:
        said = json.loads(line.decode("utf-8", "replace"), object_pairs_hook=_Members)
    except (ValueError, RecursionError):
        return False
    message = next((value for name, value in said if name == "message"), None) if _is_object(said) else None
    left = [said]
    while left:
        one = left.pop()
        if isinstance(one, _Members):
            if not _has_plain_names(one) or (one is not message and _names_calls(one)):
                return False
            left += [value for name, value in one if name != "arguments"]
        elif isinstance(one, list):
            left += one
    return True


def _is_object(value: Any) -> bool:
    return isinstance(value, _Members)


def _names_calls(members: _Members) -> bool:
    return any(name == "tool_calls" for name, _ in members)


def _has_plain_names(members: _Members) -> bool:
    names = [name for name, _ in members if name.casefold() in _NAMES]
    return len(set(names)) == len(names) and _NAMES.issuperset(names)
