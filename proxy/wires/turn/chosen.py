"""Removes the elements of a request that choose server tools, and translates a ``tool_choice`` of them.

No upstream knows these elements. It gets the tools themselves, as functions.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any

import orjson

from proxy.base.errors import RequestError
from proxy.json.splice import elements, join_array, join_object, members
from proxy.wires.chosen import SINGLE, Chosen, ShownTools


def without_elements(
    raw: bytes,
    chosen: Chosen,
    rewrite: Callable[[dict[str, bytes]], None] = lambda parts: None,
    *,
    only_with_tools: Collection[str] = (),
) -> bytes:
    """Return a request body without elements that choose server tools. All others keep their bytes.

    A list that becomes empty is removed. ``rewrite`` changes the other members in place. If no ``tools``
    are left, the members in ``only_with_tools`` are removed, too.
    """
    parts = members(raw)
    for member, places in chosen.places:
        listed = parts.get(member, b"[]")
        kept = [one for place, one in enumerate(elements(listed)) if place not in places]
        if kept:
            parts[member] = join_array(kept)
        else:
            parts.pop(member, None)
    rewrite(parts)
    if "tools" not in parts:
        for member in only_with_tools:
            parts.pop(member, None)
    return join_object(parts)


def chosen_functions(
    choice: Mapping[str, Any], shown: ShownTools, chosen: Chosen, at: str
) -> list[str] | None:
    """Return the names of the functions for the server tool, or for all tools of the server, that a
    ``tool_choice`` names; ``None`` if it names no server tool.

    ``at`` is the path of ``choice`` in the body, for errors. Raises :class:`RequestError` for
    a tool that the request does not choose.
    """
    kind = choice.get("type")
    if kind and chosen.hosted:
        served = [name for name, tool in shown.hosted.items() if tool.declared.get("type") == kind]
        if served:
            return served
    if kind == "mcp" and (label := choice.get("server_label")) in chosen.labels:
        name = choice.get("name")
        if name is None:
            return [tool.id for server in shown.servers if server.label == label for tool in server.tools]
        found = shown.id_of(str(label), str(name))
        if found is None:
            said = f"{at}.name names a tool that this request does not choose: {str(name)[:64]!r}."
            raise RequestError(400, said, param=f"{at}.name")
        return [found]
    if isinstance(kind, str) and kind.startswith(SINGLE):
        name = kind.removeprefix(SINGLE)
        if name not in {tool.name for tool in chosen.tools}:
            said = f"{at}.type names a tool that this request does not choose: {name[:64]!r}."
            raise RequestError(400, said, param=f"{at}.type")
        return [name]
    return None


def rewrite_choice(
    parts: dict[str, bytes],
    shown: ShownTools,
    chosen: Chosen,
    *,
    named: Callable[[str], dict[str, Any]],
    allowed: Callable[[str, list[Any]], dict[str, Any]],
) -> None:
    """Replace the server tools in ``tool_choice`` by functions.

    ``named`` builds the choice of one function. ``allowed`` builds the choice of a mode and several
    functions.
    """
    choice = orjson.loads(parts.get("tool_choice", b"null"))
    if not isinstance(choice, dict):
        return
    found = chosen_functions(choice, shown, chosen, "tool_choice")
    if found is not None:
        free = named(found[0]) if len(found) == 1 else allowed("required", list(map(named, found)))
        parts["tool_choice"] = orjson.dumps(free if found else "auto")
        return
    nested = choice.get("allowed_tools")
    holder = nested if isinstance(nested, dict) else choice
    listed = holder.get("tools")
    if not isinstance(listed, list):
        return
    written: list[Any] = []
    for place, tool in enumerate(listed):
        names = None
        if isinstance(tool, dict):
            names = chosen_functions(tool, shown, chosen, f"tool_choice.tools[{place}]")
        written += [tool] if names is None else map(named, names)
    if written != listed:
        parts["tool_choice"] = orjson.dumps(allowed(str(holder.get("mode") or "auto"), written))
