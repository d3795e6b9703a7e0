"""The ``tools`` of a Response as its client sees them: its own tools, as the upstream completed them.

An upstream repeats the tools of the request with the fields that it filled in (``strict``), including the
server tools. The client gets its own part of that list. It gets its own declaration for a tool that a
server tool replaced, or that the upstream leaves out.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import orjson

from proxy.json.splice import elements, join_array

__all__ = ["ClientTools", "with_all_fields"]

T = TypeVar("T")

_NAMED = ("function", "custom")
_FUNCTION = {"description": None, "parameters": None, "strict": None}
"""Fields of every function in the resource."""


class ClientTools:
    """The tools in the responses to one client. With ``open_names``, a stored prompt may contain tools that
    the client did not declare."""

    def __init__(
        self, asked: Mapping[str, Any], is_hidden: Callable[[str], bool], *, open_names: bool
    ) -> None:
        declared = asked.get("tools")
        self._declared: Sequence[Any] = declared if isinstance(declared, list) else []
        self._is_hidden = is_hidden
        self._open_names = open_names

    def listed(self, response: Mapping[str, Any]) -> list[Any]:
        """Return the tools for a resource that an upstream made."""
        listed = response.get("tools")
        listed = listed if isinstance(listed, list) else []
        return self._told(zip(listed, listed, strict=True), self._declared)

    def completed(self, response: Mapping[str, Any]) -> list[Any]:
        """Return the same tools, each function with every field of its schema."""
        return with_all_fields(self.listed(response))

    def raw(self, response: Mapping[str, Any], listed: bytes) -> bytes:
        """Return the same tools as bytes, with the upstream's bytes where possible; ``listed`` is its raw
        list."""
        tools = response.get("tools")
        pieces = elements(listed) if tools and isinstance(tools, list) else []
        pairs = zip(tools or (), pieces, strict=True) if pieces else ()
        told = self._told(pairs, [orjson.dumps(tool) for tool in self._declared])
        return listed if told == pieces else join_array(told)

    def _told(self, listed: Iterable[tuple[Any, T]], declared: Sequence[T]) -> list[T]:
        """Return the declared tools, each in its form from ``listed`` if it is there."""
        named: dict[str, T] = {}
        hosted: list[T] = []
        for tool, form in listed:
            if _kind(tool) in _NAMED:
                name = tool.get("name")
                if isinstance(name, str) and not self._is_hidden(name):
                    named.setdefault(name, form)
            elif isinstance(tool, dict):
                hosted.append(form)
        if len(hosted) < sum(_kind(tool) not in _NAMED for tool in self._declared):
            hosted = []  # They cannot be matched to the declared ones.
        told = []
        for tool, form in zip(self._declared, declared, strict=True):
            if _kind(tool) in _NAMED:
                told.append(named.pop(str(tool.get("name")), form))
            else:
                told.append(hosted.pop(0) if hosted else form)
        return [*told, *named.values(), *hosted] if self._open_names else told


def with_all_fields(tools: Iterable[Any]) -> list[Any]:
    """Return the tools, each function with every field of its schema."""
    return [{**tool, **_FUNCTION, **tool} if _kind(tool) == "function" else tool for tool in tools]


def _kind(tool: Any) -> Any:
    return tool.get("type") if isinstance(tool, dict) else None
