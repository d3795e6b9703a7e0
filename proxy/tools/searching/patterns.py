"""Search for tools with a regular expression that a model wrote.

Rust's engine, which pydantic brings along, matches in time that is linear in the text: it has neither
lookaround nor backreferences. What grows with the pattern has bounds here: its length, no counted
repetitions, the text of each tool, and the time of a search.
"""

import re
import time
from collections.abc import Iterable, Sequence
from typing import Final

from pydantic_core import SchemaError, SchemaValidator, ValidationError, core_schema

from proxy.base.errors import ToolFailure
from proxy.base.events import ToolDefinition

MOST_PATTERN: Final = 200
"""The most characters of a pattern. Source: Anthropic's page "Tool search tool"."""
_MOST_TEXT: Final = 500
"""How many characters of a tool are searched: of its name, arguments and description."""
_MOST_S: Final = 0.1
_COUNTED: Final = re.compile(r"(?<!\\)(?:\\\\)*\{\s*[\d#]")
"""A count behind any number of escaped backslashes; with ``(?x)`` a comment may stand before it."""


def matching(pattern: str, tools: Iterable[ToolDefinition]) -> Sequence[str]:
    """Return the names of the tools that match a pattern; first those whose names match.

    Raise :class:`~proxy.base.errors.ToolFailure` for a pattern that cannot be used, and if the search takes
    too long.
    """
    if len(pattern) > MOST_PATTERN:
        raise ToolFailure(f"a pattern has at most {MOST_PATTERN} characters", code="invalid_arguments")
    if _COUNTED.search(pattern):
        raise ToolFailure("a pattern may not count repetitions: write * or +", code="invalid_arguments")
    try:
        validator = SchemaValidator(core_schema.str_schema(pattern=pattern, regex_engine="rust-regex"))
    except SchemaError:
        reason = "this is not a regular expression, or has lookaround or backreferences"
        raise ToolFailure(reason, code="invalid_arguments") from None
    until = time.monotonic() + _MOST_S
    named, others = [], []
    for tool in tools:
        if time.monotonic() > until:
            raise ToolFailure("the search took too long; write a simpler pattern", code="timeout")
        if _fits(validator, tool.name):
            named.append(tool.name)
        elif _fits(validator, _text_of(tool)):
            others.append(tool.name)
    return [*named, *others]


def _fits(validator: SchemaValidator, text: str) -> bool:
    try:
        validator.validate_python(text)
    except ValidationError:
        return False
    return True


def _text_of(tool: ToolDefinition) -> str:
    properties = tool.parameters.get("properties")
    arguments = " ".join(properties) if isinstance(properties, dict) else ""
    return f"{arguments[:_MOST_TEXT]}\n{tool.description}"[:_MOST_TEXT]
