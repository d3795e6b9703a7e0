"""Finds every model that a request's body names, in the fields of all dialects, for keys with ``models``."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from proxy.base.errors import ModelMissing, RequestError
from proxy.wires.registry.hosted_tools import hosted_tool
from proxy.wires.registry.requests import CHOOSING, MODEL_PATHS, TOOL_HOLDERS, check_names, prompt_of

_OF_A_TOOL: Final = (("model",), ("svg", "model"))
"""Where a tool may name models: a name, or a list of names and of objects with a ``model``."""

_PRESET: Final = "@preset/"
"""The part of a model's name that stands for a preset, which may replace the model."""


def named_models(payload: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the field and the name of every further model that a body names.

    Raises :class:`RequestError`: 400 if there is no ``model``, since a provider would choose
    one, or if a field is no name; 403 for a field by which a provider chooses a model that cannot be checked.
    """
    model = payload.get("model")
    if not isinstance(model, str):
        raise ModelMissing()
    if _PRESET in model:
        raise _not_readable("model", "a preset may choose another model")
    for field in CHOOSING:
        if payload.get(field) is not None:
            raise _not_readable(field, "it may choose other models")
    if (prompt := prompt_of(payload)) is not None and isinstance(prompt.value, dict):
        raise _not_readable(prompt.name, "a stored prompt may have a model and tools of its own")
    yield from _named(payload, "", MODEL_PATHS)
    yield from _of_tools(payload)


def _of_tools(payload: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the models of all tools: of the request, of its input items, and of tools that contain tools."""
    lists = {field: payload[field] for field in TOOL_HOLDERS if isinstance(payload.get(field), list)}
    holders = [("", payload)]
    holders += [
        (f"{field}[{number}].", item)
        for field, items in lists.items()
        for number, item in enumerate(items)
        if isinstance(item, dict)
    ]
    while holders:
        place, holder = holders.pop()
        tools = holder.get("tools")
        for number, tool in enumerate(tools if isinstance(tools, list) else ()):
            if isinstance(tool, dict):
                check_names(tool)
                here = f"{place}tools[{number}]."
                yield from _of_tool(tool, here)
                holders.append((here, tool))


def _of_tool(tool: Mapping[str, Any], place: str) -> Iterator[tuple[str, str]]:
    kind = tool.get("type")
    known = hosted_tool(kind if isinstance(kind, str) else "")
    if known.asks_models and kind not in known.asks_none:
        raise _not_readable(f"{place}type", "this tool may ask other models")
    if known.chooses_model and tool.get("model") is None:
        raise _not_readable(f"{place}model", "without it the provider chooses a model for this tool")
    yield from _named(tool, place, _OF_A_TOOL)


def _named(
    holder: Mapping[str, Any], place: str, paths: tuple[tuple[str, ...], ...]
) -> Iterator[tuple[str, str]]:
    """Yield the names at these paths of an object."""
    for path in paths:
        value: Any = holder
        for name in path:
            if value is not holder and isinstance(value, dict):
                check_names(value)
            value = value.get(name) if isinstance(value, dict) else None
        field = place + ".".join(path)
        for item in value if isinstance(value, list) else () if value is None else (value,):
            if isinstance(item, dict):
                check_names(item)
                item = item.get("model")
            if not isinstance(item, str):
                raise RequestError(
                    400, f"{field} must be the name of a model, or a list of names.", param=field
                )
            if item == "default" and path == ("fallbacks",):
                raise _not_readable(field, "the provider chooses the models")
            if _PRESET in item:
                raise _not_readable(field, "a preset may choose another model")
            yield field, item


def _not_readable(field: str, why: str) -> RequestError:
    says = "Name an allowed model there" if field.endswith("model") else "Leave it out"
    return RequestError(
        403,
        f"This key is limited to some models, and the proxy cannot check {field}: {why}. {says}, or use a "
        "key without models.",
        param=field,
        code="model_not_readable",
    )
