"""What an MCP server says of its tools, read leniently and bounded.

A server is a stranger.  One definition that cannot be used leaves out that tool and no other; texts lose the
characters that a person would not see; and a digest over all that a model or a person is shown tells whether
a definition is still the one that somebody allowed.

Sources: the specification's ``Tool`` type, revisions 2024-11-05 to 2026-07-28.
"""

import hashlib
import json
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from proxy.errors import ConfigError
from proxy.plain_text import INVISIBLE, VARIATIONS
from proxy.tools.contract.schema import check_schema
from proxy.tools.mcp.names import MAX_NAME, mcp_tool_id

__all__ = [
    "MAX_SHOWN",
    "MAX_TOOLS",
    "Definition",
    "LeftOutTool",
    "Listing",
    "UnusableDefinition",
    "check_input",
    "read_listing",
    "visible_text",
]

MAX_TOOLS: Final = 200
"""Tools of one server that are looked at, unless ``mcp.max_tools`` says otherwise."""

MAX_SHOWN: Final = 1024
"""Characters of a description that models are shown."""

_MAX_KEPT = 4096
_MAX_SCHEMA = 65536
_MAX_PATH = 100
_ABOUT: Final = ("title", "description", "$comment")
"""Keywords of a schema that only a reader needs."""

_DATA: Final = ("const", "default", "enum", "examples")
"""Keywords of a schema whose values are data, not schemas."""

_HIDDEN: Final = frozenset(("Cc", "Cf", "Cs", "Co", "Cn"))
_IDLE_VARIATIONS: Final = re.compile("(?<![^\\s\ufe00-\ufe0f])[\ufe00-\ufe0f]+")

_HINTS = ("readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint")


class UnusableDefinition(Exception):
    """What a server, a file or the record has as the definition of a tool cannot be used; says why."""


@dataclass(frozen=True, slots=True)
class Definition:
    """A tool as its server describes it.

    ``name`` is the server's own.  ``input_schema`` and ``output_schema`` are JSON Schemas as they came;
    ``annotations`` are the server's hints, which are shown to a person and decide nothing.
    """

    server: str
    name: str
    description: str = ""
    title: str = ""
    input_schema: Mapping[str, Any] = field(default_factory=dict)
    output_schema: Mapping[str, Any] | None = None
    annotations: Mapping[str, bool] = field(default_factory=dict)

    @property
    def id(self) -> str:
        """How the tool is called here."""
        return mcp_tool_id(self.server, self.name)

    @property
    def digest(self) -> str:
        """SHA-256 in hex over everything that a person allowed: another digest is another tool."""
        text = json.dumps(self.written(), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def model_text(self) -> str:
        """The description as a model reads it: visible characters only, at most 1,024."""
        text = visible_text(self.description) or visible_text(self.title) or visible_text(self.name)
        return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 1].rstrip() + "…"

    @property
    def model_schema(self) -> dict[str, Any]:
        """The input schema as a model reads it: as it came, with visible characters only in the texts that
        describe it.  In names and values there are none that are hidden: see :func:`check_input`."""
        shown: dict[str, Any] = _shown_schema(self.input_schema)
        return shown

    @property
    def texts(self) -> list[str]:
        """Every text of it that a model may read, in the schema its keys and values, too."""
        return [self.name, self.title, self.description, *_texts(self.input_schema)]

    @property
    def has_hidden_text(self) -> bool:
        """Whether a text of it has characters that a person does not see."""
        return any(_hides(text) for text in self.texts)

    def written(self) -> dict[str, Any]:
        """As JSON, for a pin and for its digest."""
        return {
            "server": self.server,
            "name": self.name,
            "title": self.title,
            "description": self.description,
            "inputSchema": dict(self.input_schema),
            "outputSchema": None if self.output_schema is None else dict(self.output_schema),
            "annotations": dict(self.annotations),
        }

    @classmethod
    def read(cls, written: Mapping[str, Any]) -> "Definition":
        """The definition that :meth:`written` wrote; raises :class:`UnusableDefinition`."""
        try:
            made = cls(
                server=written["server"],
                name=written["name"],
                description=written["description"],
                title=written["title"],
                input_schema=written["inputSchema"],
                output_schema=written["outputSchema"],
                annotations=written["annotations"],
            )
        except (KeyError, TypeError):
            raise UnusableDefinition("it is no definition of a tool") from None
        texts = (made.server, made.name, made.description, made.title)
        if not all(isinstance(text, str) for text in texts) or not isinstance(made.input_schema, dict):
            raise UnusableDefinition("it is no definition of a tool")
        return made


@dataclass(frozen=True, slots=True)
class LeftOutTool:
    """A tool that cannot be used, and why."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Listing:
    """The outcome of listing a server's tools."""

    definitions: Sequence[Definition] = ()
    left_out: Sequence[LeftOutTool] = ()


def read_listing(server: str, tools: Iterable[Any], most: int = MAX_TOOLS) -> Listing:
    """The tools of a server's ``tools/list``, each a decoded JSON value, in the server's order.

    A tool whose definition cannot be used is left out with its reason, as are two of one name, and those
    beyond the first ``most``.
    """
    found: list[Definition] = []
    left_out: list[LeftOutTool] = []
    for place, tool in enumerate(tools):
        name = tool.get("name") if isinstance(tool, dict) else None
        shown = visible_text(name)[:MAX_NAME] if isinstance(name, str) else f"tool {place + 1}"
        if place >= most:
            left_out.append(LeftOutTool(shown, f"the server has more than {most} tools (mcp.max_tools)"))
            continue
        try:
            found.append(_read_tool(server, tool))
        except UnusableDefinition as fault:
            left_out.append(LeftOutTool(shown, str(fault)))
    names = Counter(one.name for one in found)
    ids = Counter(one.id for one in found)
    doubled = [one for one in found if names[one.name] > 1 or ids[one.id] > 1]
    left_out += [LeftOutTool(one.name, "the server has two tools of this name") for one in doubled]
    return Listing(tuple(one for one in found if one not in doubled), tuple(dict.fromkeys(left_out)))


def visible_text(text: str) -> str:
    """The text without control characters, direction marks, zero-width characters, tags, surrogates, fillers
    and variation selectors that stand in a row.

    Line breaks and tabs stay.  A model reads what a person cannot see; so nothing of that kind goes to it.
    """
    characters = set(text)
    hidden = {ord(one): None for one in characters if not _is_visible(one)}
    shown = text.translate(hidden) if hidden else text
    if not characters.isdisjoint(VARIATIONS):
        shown = _IDLE_VARIATIONS.sub("", shown)
    return shown.strip()


def _is_visible(character: str) -> bool:
    if character in "\n\t":
        return True
    return unicodedata.category(character) not in _HIDDEN and character not in INVISIBLE


def check_input(schema: Any) -> dict[str, Any]:
    """The schema of a tool's arguments, if a provider of models takes it and a person sees all of it.

    Texts that only describe something may have hidden characters, which models are not shown.  Raises
    :class:`UnusableDefinition`.
    """
    try:
        check_schema(schema, "")
    except ConfigError as fault:
        raise UnusableDefinition(f"its inputSchema cannot be used: {fault.problem}") from None
    except RecursionError:
        raise UnusableDefinition("its inputSchema is nested too deeply") from None
    checked: dict[str, Any] = schema
    where = _hidden_path(_shown_schema(checked), "inputSchema")
    if where is not None:
        raise UnusableDefinition(f"its inputSchema has invisible characters in a name or value: {where}")
    return checked


def _read_tool(server: str, tool: Any) -> Definition:
    """One definition; raises :class:`UnusableDefinition`."""
    if not isinstance(tool, dict):
        raise UnusableDefinition("its definition is no JSON object")
    name = tool.get("name")
    if not isinstance(name, str) or not name:
        raise UnusableDefinition("it has no name")
    if len(name) > MAX_NAME:
        raise UnusableDefinition(f"its name has more than {MAX_NAME} characters")
    schema, output = check_input(tool.get("inputSchema")), tool.get("outputSchema")
    return Definition(
        server=server,
        name=name,
        description=_text(tool, "description"),
        title=_text(tool, "title"),
        input_schema=schema,
        output_schema=output if _is_small_object(output) else None,
        annotations=_hints(tool.get("annotations")),
    )


def _text(tool: Mapping[str, Any], key: str) -> str:
    text = tool.get(key)
    if text is None:
        return ""
    if not isinstance(text, str):
        raise UnusableDefinition(f"its {key} is no text")
    return text[:_MAX_KEPT]


def _is_small_object(schema: Any) -> bool:
    """Whether an output schema can be kept; it is not used to check anything that matters."""
    if not isinstance(schema, dict):
        return False
    try:
        return len(json.dumps(schema)) <= _MAX_SCHEMA
    except (ValueError, RecursionError):
        return False


def _hints(annotations: Any) -> dict[str, bool]:
    """The hints that the specification knows; anything else a server says there is not kept."""
    if not isinstance(annotations, dict):
        return {}
    return {hint: annotations[hint] for hint in _HINTS if isinstance(annotations.get(hint), bool)}


def _texts(value: Any) -> list[str]:
    """Every text in a schema, keys included; a schema's depth is bounded before."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [*(key for key in value), *(text for child in value.values() for text in _texts(child))]
    if isinstance(value, list):
        return [text for child in value for text in _texts(child)]
    return []


def _hides(text: str) -> bool:
    """Whether a text has characters that a person does not see; the line breaks of Windows are none."""
    return visible_text(text) != text.replace("\r", "").strip()


def _shown_schema(schema: Any) -> Any:
    """A schema whose describing texts have visible characters only; nothing else of it is another."""
    if isinstance(schema, list):
        return [_shown_schema(one) for one in schema]
    if not isinstance(schema, Mapping):
        return schema
    shown: dict[str, Any] = {}
    for key, value in schema.items():
        if key in _ABOUT and isinstance(value, str):
            shown[key] = visible_text(value) if _hides(value) else value
        else:
            shown[key] = value if key in _DATA and not isinstance(value, Mapping) else _shown_schema(value)
    return shown


def _hidden_path(value: Any, path: str) -> str | None:
    """Where a text has hidden characters, visible and cut; ``None`` where none has any."""
    if isinstance(value, str):
        return path[:_MAX_PATH] if _hides(value) else None
    if isinstance(value, Mapping):
        if any(_hides(key) for key in value):
            return path[:_MAX_PATH]
        below = ((child, f"{path}.{key}") for key, child in value.items())
    elif isinstance(value, list):
        below = ((child, path) for child in value)
    else:
        return None
    return next((found for child, where in below if (found := _hidden_path(child, where))), None)
