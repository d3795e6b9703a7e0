"""Finds the tools that an upstream's error is about: by their names, or by their places in the request.

Sources: "Invalid schema for function 'NAME': ..." (OpenAI), "tools.14.custom.input_schema..." (Anthropic),
"GenerateContentRequest.tools[0].function_declarations[3].parameters..." (Google), a path of pydantic's
such as ``('body', 'tools', 3, 'function')`` (vLLM, Mistral).
"""

import re
from collections.abc import Callable, Collection, Sequence
from typing import Any

import orjson

from proxy.wires.turn.edits import is_too_long_error

_PLACES = (
    re.compile(r"function_?declarations\W{1,3}(\d{1,4})\b", re.IGNORECASE),
    re.compile(r"\btools(?:\[|\.|['\"]\s*,\s*)(\d{1,4})\b"),
)
"""A place in Google's own list comes first: there ``tools[0]`` holds all functions."""

_DEFINITION = re.compile(
    r"schema|parameter|propert|definition|declaration|\btools?\b|function", re.IGNORECASE
)
_CALL = re.compile(r"tool[ _](call|use)|failed to call|call(ed|ing)? a? ?(tool|function)", re.IGNORECASE)
"""An error about a call that a model made, not about a definition."""


def named_tools(
    message: str, tools: Sequence[bytes], offered: Collection[str], name_of: Callable[[Any], str | None]
) -> frozenset[str]:
    """Return which of the ``offered`` names an error says are defined badly.

    ``tools`` are the elements of the request's list, and ``name_of`` reads the name of one.
    """
    if is_too_long_error(message, None) or _CALL.search(message) or not _DEFINITION.search(message):
        return frozenset()
    found = {
        name
        for name in offered
        if name in message and re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", message)
    }
    places = next((places for pattern in _PLACES if (places := pattern.findall(message))), ())
    for place in map(int, places):
        name = name_of(orjson.loads(tools[place])) if place < len(tools) else None
        if name is not None and name in offered:
            found.add(name)
    return frozenset(found)
