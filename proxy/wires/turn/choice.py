"""What a client's ``tool_choice`` still asks for after a turn of a run (rule W9).

A forced choice is the client's: where it declared tools of its own, it waits for a call of one of those,
and a call of a server tool, which it never sees, does not satisfy it.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from proxy.events import ToolDefinition

__all__ = ["NameOf", "forces_own", "own_and_offered", "relaxed"]

NameOf = Callable[[Any], str | None]
"""Reads the name of a tool where it is declared or chosen."""


def own_and_offered(
    declared: Collection[str], added: Sequence[ToolDefinition], replaced: Sequence[ToolDefinition]
) -> tuple[Collection[str], frozenset[str]]:
    """The names of the tools that stay the client's own, and of the server tools in the request."""
    offered = frozenset([tool.name for tool in (*added, *replaced)])
    return [name for name in declared if name not in offered], offered


def _allowed(choice: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The part of a choice that lists allowed tools: Chat has it in an object of its own."""
    nested = choice.get("allowed_tools")
    if isinstance(nested, dict):
        return nested
    return choice if choice.get("type") == "allowed_tools" else None


def forces_own(choice: Any, own: Collection[str], name_of: NameOf) -> bool:
    """Whether a choice can only be satisfied by a call of one of the client's ``own`` tools."""
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
    """The choice for the turn after server tools were ``called``.

    A forced choice that these calls satisfied becomes ``auto``; a list of allowed tools stays a list.
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
