"""Decides what a client's ``tool_choice`` still demands after a turn of a run (rule W9).

A forced choice belongs to the client. If the client declared tools of its own, it waits for a call of one
of them. A call of a server tool does not satisfy the choice, because the client never sees that call.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any

NameOf = Callable[[Any], str | None]
"""Returns the name of a tool from its declaration or from a choice; ``None`` if there is none."""


def _allowed(choice: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the part of a choice that lists the allowed tools. Chat nests it in an object of its own."""
    nested = choice.get("allowed_tools")
    if isinstance(nested, dict):
        return nested
    return choice if choice.get("type") == "allowed_tools" else None


def forces_own(choice: Any, own: Collection[str], name_of: NameOf) -> bool:
    """Return whether only a call of one of the client's ``own`` tools can satisfy a choice."""
    if choice == "required":
        return bool(own)
    if not isinstance(choice, dict):
        return False
    allowed = _allowed(choice)
    if allowed is None:
        return name_of(choice) in own
    listed = allowed.get("tools")
    names = [name_of(tool) for tool in listed] if isinstance(listed, list) else []
    return allowed.get("mode") == "required" and any(name in own for name in names)


def relaxed(choice: Any, called: Collection[str], own: Collection[str], name_of: NameOf) -> Any:
    """Return the choice for the turn after server tools were ``called``.

    If these calls satisfied a forced choice, it becomes ``auto``. A list of allowed tools stays a list.
    """
    if not called or forces_own(choice, own, name_of):
        return choice
    if choice == "required":
        return "auto"
    if not isinstance(choice, dict):
        return choice
    allowed = _allowed(choice)
    if allowed is None:
        return "auto" if name_of(choice) in called else choice
    if allowed.get("mode") != "required":
        return choice
    free = {**allowed, "mode": "auto"}
    return free if allowed is choice else {**choice, "allowed_tools": free}
