"""Arguments of calls in the dialects that have them as an object, whatever the model wrote."""

from typing import Any, Final

from proxy.wires.turn.assembler import object_of

__all__ = ["CUT", "NOT_JSON", "arguments_object"]

NOT_JSON: Final = "INVALID_JSON"
"""The member that holds arguments which are no JSON object.

Source: Anthropic's documentation, "Fine-grained tool streaming", "Handling invalid JSON in tool responses".
"""

CUT: Final = frozenset({"length", "content_filter"})
"""Reasons for the end of a turn whose calls nobody runs: the last one may be half a call (rule W7)."""


def arguments_object(arguments: str) -> dict[str, Any]:
    """The object that stands for a call's arguments.

    Empty text and ``null`` mean no arguments.  Text that is no JSON object becomes the only member of one.
    A client that checks arguments refuses it, as the runner refuses such a call of a server tool.
    """
    if arguments.strip() in ("", "null"):
        return {}
    found = object_of(arguments)
    return {NOT_JSON: arguments} if found is None else found
