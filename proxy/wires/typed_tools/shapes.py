"""The types of the members of what clients declare and send back, as data, and the check of them."""

import re
from collections.abc import Mapping
from typing import Any, Final

from proxy.base.errors import RequestError

Shape = Any
"""What a value must be: a type of JSON; a tuple of the texts that are possible; a list with the shape of each
element; or a mapping with the shapes of members, each of which may be missing or ``null``."""

_WORDS: Final[Mapping[Any, str]] = {
    str: "a string",
    int: "a whole number",
    bool: "true or false",
    dict: "an object",
    list: "a list",
}

_NAME: Final = re.compile(r"[a-zA-Z0-9_-]*")
_LONGEST_NAME: Final = 128


def check_members(holder: Mapping[str, Any], shapes: Mapping[str, Shape], path: str) -> None:
    """Raise :class:`RequestError`, which names the member, if one of an object has not its shape."""
    for name, shape in shapes.items():
        if (value := holder.get(name)) is not None:
            _check(value, shape, f"{path}.{name}")


def check_name(name: str, path: str) -> None:
    """Raise :class:`RequestError` in OpenAI's words if OpenAI refuses the name of a tool.

    Sources: https://github.com/openai/codex/pull/8694 (the pattern) and
    https://github.com/openai/codex/issues/46188 (the length that the Responses API takes).
    """
    if len(name) > _LONGEST_NAME:
        raise RequestError(
            400,
            f"Invalid '{path}': string too long. Expected a string with maximum length {_LONGEST_NAME}, "
            f"but got a string with length {len(name)} instead.",
            param=path,
        )
    if not _NAME.fullmatch(name):
        raise RequestError(
            400,
            f"Invalid '{path}': string does not match pattern. "
            f"Expected a string that matches the pattern '^[a-zA-Z0-9_-]+$'.",
            param=path,
        )


def check_grammar(grammar: Mapping[str, Any], path: str) -> None:
    """Raise :class:`RequestError` in OpenAI's words for the grammar of a custom tool that lacks a member."""
    for name in ("syntax", "definition"):
        if grammar.get(name) is None:
            raise RequestError(400, f"Missing required parameter: '{path}.{name}'.", param=f"{path}.{name}")


def _check(value: Any, shape: Shape, path: str) -> None:
    if isinstance(shape, tuple):
        if value not in shape:
            raise _fault(path, f"one of {', '.join(shape)}")
        return
    kind: Any = shape if isinstance(shape, type) else type(shape)
    if type(value) is not kind:
        raise _fault(path, _WORDS[kind])
    if kind is not shape and kind is dict:
        check_members(value, shape, path)
    elif kind is not shape:
        for place, element in enumerate(value):
            _check(element, shape[0], f"{path}[{place}]")


def _fault(path: str, words: str) -> RequestError:
    return RequestError(400, f"{path} must be {words}.", param=path)
