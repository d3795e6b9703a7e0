"""Converts the arguments of calls to an object, for dialects that carry arguments as an object."""

import re
from typing import Any, Final

import orjson

from proxy.wires.turn.assembler import object_of

NOT_JSON: Final = "INVALID_JSON"
"""The only member of the object that carries arguments which are not a JSON object.

Source: Anthropic's documentation, "Fine-grained tool streaming", "Handling invalid JSON in tool responses".
"""


_LONG_NUMBER: Final = re.compile(r"\d{16}")
"""Digits in a number that orjson may round: it reads 64 bits of an integer, and 53 of any other number."""
_BLANKS: Final = re.compile(r'("[^"\\]*(?:\\.[^"\\]*)*")|[ \t\r\n]+')
"""A string, or blanks between two tokens."""


def arguments_object(arguments: str) -> dict[str, Any] | orjson.Fragment:
    """Return the object that carries a call's arguments, or its text if it has a number with many digits.

    Empty text and ``null`` mean no arguments. Text that is not a JSON object becomes the only member of an
    object. A client that checks arguments refuses that object, as the runner refuses such a call of a
    server tool.
    """
    if arguments.strip() in ("", "null"):
        return {}
    found = object_of(arguments)
    if found is None:
        return {NOT_JSON: arguments}
    if _LONG_NUMBER.search(arguments) is None:
        return found
    # Blanks may be line breaks, which end a line of Ollama's stream.
    return orjson.Fragment(_BLANKS.sub(r"\1", arguments))
