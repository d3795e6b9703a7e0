"""Removes tools from a request: from the list of tools, and from the choice among them.

No upstream accepts a choice of a tool that it does not know. Some refuse a choice if there are no tools.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any

import orjson

from proxy.json.splice import elements, join_array


def without_tools(
    parts: Mapping[str, bytes],
    names: Collection[str],
    name_of: Callable[[Any], str | None],
    *,
    tools: str,
    choice: str,
    only_with_tools: Collection[str],
) -> dict[str, bytes]:
    """Return the members of a body without the tools called ``names``. All that stays keeps its bytes.

    ``name_of`` reads the name of a tool from its declaration or from a choice. ``tools`` and ``choice`` are
    the names of the members that hold tools and the choice. The members ``only_with_tools`` are removed
    with the last tool.
    """
    left = dict(parts)
    if not names:
        return left
    declared = parts.get(tools, b"null")
    kept = [
        raw
        for raw in (elements(declared) if declared[:1] == b"[" else ())
        if name_of(orjson.loads(raw)) not in names
    ]
    if kept:
        left[tools] = join_array(kept)
    else:
        for member in (tools, *only_with_tools):
            left.pop(member, None)
    if choice in left:
        asked = orjson.loads(left[choice])
        chosen = _left_to_choose(asked, names, name_of)
        if chosen != asked:
            left[choice] = orjson.dumps(chosen)
    return left


def drop_idle_choice(parts: dict[str, bytes], *, tools: str, choice: str, others: Collection[str]) -> None:
    """Remove the choice and the members ``others`` from a body without tools, unless a call is demanded.

    OpenAI, vLLM and xAI refuse a choice without tools (``'tool_choice' is only allowed when 'tools' are
    specified``). A demand that cannot be met stays, so that the upstream says so.
    """
    if parts.get(tools, b"[]") != b"[]":
        return
    parts.pop(tools, None)
    asked = orjson.loads(parts.get(choice, b"null"))
    kind = asked.get("type") if isinstance(asked, dict) else asked
    if kind in ("auto", "none", None):
        for member in (choice, *others):
            parts.pop(member, None)


def _left_to_choose(choice: Any, names: Collection[str], name_of: Callable[[Any], str | None]) -> Any:
    """Return a choice without these tools.

    A forced choice becomes ``auto``: the model goes on as if the tool had been called. A list of allowed
    tools gets shorter. If it becomes empty, the choice is ``none``, since nothing else was allowed.
    """
    if not isinstance(choice, dict):
        return choice
    nested = choice.get("allowed_tools")  # Chat nests the list in an object of its own.
    holder = nested if isinstance(nested, dict) else choice
    listed = holder.get("tools")
    if not isinstance(listed, list):
        return "auto" if name_of(choice) in names else choice
    kept = [tool for tool in listed if name_of(tool) not in names]
    if not kept and listed:
        return "none"
    shorter = {**holder, "tools": kept}
    return shorter if holder is choice else {**choice, "allowed_tools": shorter}
