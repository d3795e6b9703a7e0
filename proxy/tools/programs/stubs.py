"""Tools as a program sees them: names that languages allow, and typed declarations made from their schemas.

The schemas and descriptions may come from a server of a stranger. Every text is bounded and stands on lines
of comments, so it cannot end the declaration that it belongs to.
"""

import json
import keyword
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Final

from msgspec import Struct

from proxy.base.events import ToolDefinition
from proxy.tools.programs.engine import Binding, Language

_MOST_ABOUT: Final = 300
_MOST_ARGUMENT: Final = 100
"""The most characters of the description of a tool, and of an argument."""
_MOST_ARGUMENTS: Final = 40
_MOST_CHOICES: Final = 12
_MOST_DEPTH: Final = 4
_MOST_NAME: Final = 64

_OTHER: Final = re.compile(r"\W", re.ASCII)


class Notation(Struct, frozen=True):
    """How types are written: the names of the ``simple`` ones, that of ``any`` type, an object of any keys
    (``record``), and functions that write a list and a choice between values."""

    simple: Mapping[str, str]
    any: str
    record: str
    list_of: Callable[[str], str]
    one_of: Callable[[Sequence[Any]], str]


PYTHON: Final = Notation(
    {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"},
    "Any",
    "dict[str, Any]",
    lambda inner: f"list[{inner}]",
    lambda values: f"Literal[{', '.join(repr(one)[:_MOST_NAME] for one in values)}]",
)
TYPESCRIPT: Final = Notation(
    {
        **{kind: kind for kind in ("string", "number", "boolean", "null")},
        "integer": "number",
    },
    "any",
    "Record<string, any>",
    lambda inner: f"Array<{inner}>",
    lambda values: " | ".join(json.dumps(one)[:_MOST_NAME] for one in values),
)


def bindings_of(tools: Iterable[ToolDefinition]) -> Mapping[str, Binding]:
    """Return the tools by the names that a program calls them; no two have the same.

    They do not depend on the order of the tools, and a tool whose name Python allows keeps it.
    """
    found: dict[str, Binding] = {}
    taken: dict[str, str] = {}  # The last name that was made of each: those before it are not tried again.
    for tool in sorted(tools, key=lambda one: (identifier(one.name) != one.name, one.name)):
        wanted = identifier(tool.name)
        name = taken.get(wanted, wanted)
        while name in found:
            name += "_"
        taken[wanted] = name
        found[name] = Binding(tool.name, tuple(islice(_properties(tool.parameters), _MOST_ARGUMENTS)))
    return found


def identifier(name: str) -> str:
    """Return a name as Python allows it: ``a-b`` as ``a_b``."""
    made = _OTHER.sub("_", name)
    if not made or made[0].isdigit() or made.startswith("_"):
        made = f"tool_{made}"
    return f"{made}_" if keyword.iskeyword(made) else made


def stubs(tools: Sequence[ToolDefinition], language: Language = "python") -> str:
    """Return the declarations of these tools in a language."""
    by_id = {tool.name: tool for tool in tools}
    write = _stub if language == "python" else _function
    return "\n".join(write(name, by_id[bound.tool]) for name, bound in bindings_of(tools).items())


def _function(name: str, tool: ToolDefinition) -> str:
    """Return the declaration of a tool in JavaScript, with types as TypeScript writes them."""
    properties = dict(islice(_properties(tool.parameters).items(), _MOST_ARGUMENTS))
    taken = _object({**tool.parameters, "properties": properties}, 0, TYPESCRIPT, _MOST_ARGUMENTS)
    lines = [f"tools.{name}({taken if properties else ''}): Promise<any>"]
    if words := _line(tool.description, _MOST_ABOUT):
        lines.append(f"    // {words}")
    for argument, schema in properties.items():
        words = _line(schema.get("description"), _MOST_ARGUMENT) if isinstance(schema, Mapping) else ""
        lines += [f"    // {_line(argument, _MOST_NAME)}: {words}"] if words else []
    return "\n".join(lines)


def _stub(name: str, tool: ToolDefinition) -> str:
    required = tool.parameters.get("required")
    needed = set(map(str, required)) if isinstance(required, list) else set()
    arguments, about, odd = [], [], []
    properties = _properties(tool.parameters)
    # Python wants the arguments that have a default last; all are shown by name.
    for argument in sorted(islice(properties, _MOST_ARGUMENTS), key=lambda one: one not in needed):
        schema = properties[argument]
        typed = f"{argument}: {type_of(schema)}{'' if argument in needed else ' = ...'}"
        if argument.isidentifier() and not keyword.iskeyword(argument):
            arguments.append(typed)
        else:
            odd.append(typed)
        if isinstance(schema, Mapping) and (words := _line(schema.get("description"), _MOST_ARGUMENT)):
            about.append(f"    # {_line(argument, _MOST_NAME)}: {words}")
    more = ["**named: Any"] if odd else []
    lines = [f"async def {name}({', '.join(['*', *arguments] if arguments else more)}) -> Any:"]
    if arguments and more:
        lines = [f"async def {name}({', '.join(['*', *arguments, *more])}) -> Any:"]
    if words := _line(tool.description, _MOST_ABOUT):
        lines.append(f"    # {words}")
    lines += about
    lines += [f"    # in **{{…}}: {_line(one, 2 * _MOST_ARGUMENT)}" for one in odd]
    return "\n".join(lines)


def type_of(schema: Any, depth: int = 0, written: Notation = PYTHON) -> str:
    """Return the type of a JSON Schema in a notation; :attr:`Notation.any` for what has none."""
    if not isinstance(schema, Mapping) or depth > _MOST_DEPTH:
        return written.any
    choices = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(choices, list) and 0 < len(choices) <= _MOST_CHOICES:
        is_plain = all(isinstance(one, str | int | bool | None) for one in choices)
        return written.one_of(choices) if is_plain else written.any
    for several in ("anyOf", "oneOf"):
        if isinstance(options := schema.get(several), list) and options:
            kinds_of = [type_of(option, depth + 1, written) for option in options[:_MOST_CHOICES]]
            return _union(kinds_of, written)
    kinds = schema.get("type")
    if isinstance(kinds, list):
        # Each kind once: a list that repeats "array" at each depth would multiply the work.
        each = dict.fromkeys(map(str, kinds[:_MOST_CHOICES]))
        return _union((type_of({**schema, "type": kind}, depth + 1, written) for kind in each), written)
    if kinds == "array":
        return written.list_of(type_of(schema.get("items"), depth + 1, written))
    if kinds == "object":
        return _object(schema, depth, written, _MOST_CHOICES)
    return written.simple.get(str(kinds), written.any)


def _object(schema: Mapping[str, Any], depth: int, written: Notation, most: int) -> str:
    """Return an object with its keys, as ``{"a": int}``; the notation is for reading, not for a checker."""
    properties = _properties(schema)
    if not properties or len(properties) > most:
        return written.record
    required = schema.get("required")
    needed = required if isinstance(required, list) else ()
    keys = (
        f"{_line(name, _MOST_NAME)!r}{'' if name in needed else '?'}: {type_of(part, depth + 1, written)}"
        for name, part in properties.items()
    )
    return f"{{{', '.join(keys)}}}"


def _union(kinds: Iterable[str], written: Notation) -> str:
    found = list(dict.fromkeys(kinds))
    return written.any if written.any in found else " | ".join(found)


def _properties(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    properties = schema.get("properties")
    return {str(name): part for name, part in properties.items()} if isinstance(properties, Mapping) else {}


def _line(text: Any, most: int) -> str:
    """Return a text on one line."""
    line = " ".join(text[: 4 * most].split()) if isinstance(text, str) else ""
    return line if len(line) <= most else f"{line[: most - 1]}…"
