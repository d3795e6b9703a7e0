"""Converts the arguments of calls to an object, for dialects that carry arguments as an object."""

from typing import Any, Final

from proxy.wires.turn.assembler import object_of

__all__ = ["NOT_JSON", "arguments_object"]

NOT_JSON: Final = "INVALID_JSON"
"""The only member of the object that carries arguments which are not a JSON object.

Source: Anthropic's documentation, "Fine-grained tool streaming", "Handling invalid JSON in tool responses".
"""


def arguments_object(arguments: str) -> dict[str, Any]:
    """Return the object that carries a call's arguments.

    Empty text and ``null`` mean no arguments. Text that is not a JSON object becomes the only member of an
    object. A client that checks arguments refuses that object, as the runner refuses such a call of a
    server tool.
    """
    if arguments.strip() in ("", "null"):
        return {}
    found = object_of(arguments)
    return {NOT_JSON: arguments} if found is None else found
