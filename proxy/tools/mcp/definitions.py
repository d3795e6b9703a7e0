"""Read the definitions of an MCP server's tools, leniently and within bounds.

A server is untrusted. An unusable definition excludes only its own tool. Characters that a person would not
see are removed from texts. A digest over all that a model or a person reads shows whether a definition is
still the one that an operator allowed.

Sources: the specification's ``Tool`` type, revisions 2024-11-05 to 2026-07-28.

The id of a tool is ``mcp__SERVER__TOOL``. Servers may name tools as they like; the specification only
recommends ``A-Za-z0-9_.-`` and 1 to 128 characters. Providers of models accept 64 characters of a smaller
set. So a name that does not fit becomes a readable form with a hash of the original, which is the same on
every machine and at every start.
"""

import hashlib
import json
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct, field

from proxy.base.errors import ConfigError
from proxy.base.plain_text import INVISIBLE, VARIATIONS, plain_text
from proxy.tools.contract.schemas.schema import check_schema
from proxy.tools.contract.schemas.schema_library import compile_schema

PROVIDER: Final = "mcp"
"""The part of every such tool id before the first double underscore."""

SERVER_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,23}[a-z0-9])?")
"""The form of a server's name: short, so that an id has room for the tool's name."""

MAX_NAME: Final = 200
"""The most characters of a tool's name; a tool with a longer name is left out."""

_MAX_ID = 64
_HASH = 8
_FITS = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_-]*[A-Za-z0-9])?")


def pinned_tool_id(server: str, name: str, provider: str = PROVIDER) -> str:
    """Return the id of the tool with the server's own name ``name``.

    A name that fits is kept. Any other becomes its readable characters, an underscore and eight hex digits
    of the SHA-256 of the original, so that two similar names stay two tools.
    """
    head = f"{provider}__{server}__"
    if _FITS.fullmatch(name) and "__" not in name and len(head) + len(name) <= _MAX_ID:
        return head + name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:_HASH]
    readable = re.sub(r"_{2,}", "_", re.sub(r"[^A-Za-z0-9-]", "_", name)).strip("_-")
    room = _MAX_ID - len(head) - 1 - _HASH
    readable = readable[:room].rstrip("_-")
    return f"{head}{readable}_{digest}" if readable else f"{head}{digest}"


def pattern_of_server(server: str, provider: str = PROVIDER) -> str:
    """Return the pattern that fits every tool of a server."""
    return f"{provider}__{server}__*"


MAX_TOOLS: Final = 200
"""The most tools of one server that are read; the default of ``mcp.max_tools``."""

MAX_SHOWN: Final = 1024
"""The most characters of a description that a model reads."""

_MAX_KEPT = 4096
_MAX_SCHEMA = 65536
_MAX_PATH = 100
_MAX_REASON = 400
_ABOUT: Final = ("title", "description", "$comment")
"""Keywords of a schema that only describe it."""

_DATA: Final = ("const", "default", "enum", "examples")
"""Keywords of a schema whose values are data, not schemas."""

_HIDDEN: Final = frozenset(("Cc", "Cf", "Cs", "Co", "Cn"))
_IDLE_VARIATIONS: Final = re.compile("(?<![^\\s\ufe00-\ufe0f])[\ufe00-\ufe0f]+")

_HINTS = ("readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint")


class UnusableDefinition(Exception):
    """A tool's definition, from a server, a file or the record, is unusable; the message has the reason."""


class Definition(Struct, frozen=True):
    """A tool as its server describes it.

    ``name`` is the server's own name. ``input_schema`` and ``output_schema`` are the original JSON Schemas.
    ``annotations`` are the server's hints; people see them, but they decide nothing.

    The operation of an API is such a definition, too: ``provider`` is then another, and ``request`` says how
    its request is made, as JSON values.
    """

    server: str
    name: str
    description: str = ""
    title: str = ""
    input_schema: Mapping[str, Any] = field(default_factory=dict)
    output_schema: Mapping[str, Any] | None = None
    annotations: Mapping[str, bool] = field(default_factory=dict)
    provider: str = PROVIDER
    request: Mapping[str, Any] | None = None

    @property
    def id(self) -> str:
        """The tool's id in the proxy."""
        return pinned_tool_id(self.server, self.name, self.provider)

    @property
    def names(self) -> tuple[str, ...]:
        """The names by which an operator may name it: the server's own, and ``METHOD /path`` of an
        operation."""
        if self.request is None:
            return (self.name,)
        return (self.name, f"{self.request.get('method')} {self.request.get('path')}")

    @property
    def digest(self) -> str:
        """The SHA-256, in hex, of everything that an operator allowed: a new digest means another tool."""
        text = json.dumps(self.written(), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def model_text(self) -> str:
        """The description as a model reads it: visible characters only, at most 1,024."""
        text = visible_text(self.description) or visible_text(self.title) or visible_text(self.name)
        return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 1].rstrip() + "…"

    @property
    def model_schema(self) -> dict[str, Any]:
        """The input schema as a model reads it: the original without the invisible characters in describing
        texts. Names and values have no invisible characters: see :func:`check_input`."""
        shown: dict[str, Any] = _shown_schema(self.input_schema)
        return shown

    @property
    def texts(self) -> list[str]:
        """Every text that a model may read, including the keys and values of the schema."""
        return [self.name, self.title, self.description, *_texts(self.input_schema)]

    @property
    def has_hidden_text(self) -> bool:
        """Whether a text has characters that a person does not see."""
        return any(_hides(text) for text in self.texts)

    def written(self) -> dict[str, Any]:
        """Return the definition as JSON values, for a pin and for its digest."""
        return {
            "server": self.server,
            "name": self.name,
            "title": self.title,
            "description": self.description,
            "inputSchema": dict(self.input_schema),
            "outputSchema": None if self.output_schema is None else dict(self.output_schema),
            "annotations": dict(self.annotations),
            # Digests of MCP tools stay what they were before there were other providers.
            **({} if self.request is None else {"provider": self.provider, "request": dict(self.request)}),
        }

    @classmethod
    def read(cls, written: Mapping[str, Any]) -> "Definition":
        """Read what :meth:`written` wrote; raise :class:`UnusableDefinition` if it is invalid."""
        try:
            made = cls(
                server=written["server"],
                name=written["name"],
                description=written["description"],
                title=written["title"],
                input_schema=written["inputSchema"],
                output_schema=written["outputSchema"],
                annotations=written["annotations"],
                provider=written.get("provider", PROVIDER),
                request=written.get("request"),
            )
        except (KeyError, TypeError):
            raise UnusableDefinition("it is not the definition of a tool") from None
        texts = (made.server, made.name, made.description, made.title, made.provider)
        objects = [made.input_schema, made.annotations]
        objects += [part for part in (made.output_schema, made.request) if part is not None]
        fine = all(isinstance(x, str) for x in texts) and all(isinstance(x, dict) for x in objects)
        if not fine:
            raise UnusableDefinition("it is not the definition of a tool")
        return made


class LeftOutTool(Struct, frozen=True):
    """A tool that cannot be used, and the reason; both can be printed."""

    name: str
    reason: str


class Listing(Struct, frozen=True):
    """The outcome of listing a server's tools."""

    definitions: Sequence[Definition] = ()
    left_out: Sequence[LeftOutTool] = ()


def read_listing(server: str, tools: Iterable[Any], most: int = MAX_TOOLS) -> Listing:
    """Read the tools of a server's ``tools/list``, each a decoded JSON value, in the server's order.

    A tool with an unusable definition is left out with the reason; so are tools with the same name, and all
    tools after the first ``most``.
    """
    definitions: list[Definition] = []
    left_out: list[LeftOutTool] = []
    for place, tool in enumerate(tools):
        name = tool.get("name") if isinstance(tool, dict) else None
        shown = plain_text(name, MAX_NAME) if isinstance(name, str) and name else f"tool {place + 1}"
        if place >= most:
            left_out.append(LeftOutTool(shown, f"the server has more than {most} tools (mcp.max_tools)"))
            continue
        try:
            definitions.append(_read_tool(server, tool))
        except UnusableDefinition as fault:
            left_out.append(LeftOutTool(shown, plain_text(str(fault), _MAX_REASON)))
        # A definition may break what nobody thought of; it must not take other tools along.
        except Exception as error:  # noqa: BLE001
            left_out.append(LeftOutTool(shown, f"its definition cannot be read ({type(error).__name__})"))
    return distinct(definitions, left_out, "the server")


def distinct(definitions: Sequence[Definition], left_out: Sequence[LeftOutTool], whose: str) -> Listing:
    """Return the listing without the definitions of which there are two of one name or id."""
    names = Counter(d.name for d in definitions)
    ids = Counter(d.id for d in definitions)
    doubled = [d for d in definitions if names[d.name] > 1 or ids[d.id] > 1]
    twice = f"{whose} has two tools of this name"
    omitted = [*left_out, *(LeftOutTool(plain_text(name.name, MAX_NAME), twice) for name in doubled)]
    return Listing(tuple(d for d in definitions if d not in doubled), tuple(dict.fromkeys(omitted)))


def visible_text(text: str) -> str:
    """Remove control characters, direction marks, zero-width characters, tags, surrogates, fillers, and
    variation selectors without effect from a text.

    Line breaks and tabs stay. A model would read characters that a person cannot see, so it does not get
    them.
    """
    characters = set(text)
    hidden = {ord(character): None for character in characters if not _is_visible(character)}
    shown = text.translate(hidden) if hidden else text
    if not characters.isdisjoint(VARIATIONS):
        shown = _IDLE_VARIATIONS.sub("", shown)
    return shown.strip()


def _is_visible(character: str) -> bool:
    if character in "\n\t":
        return True
    return unicodedata.category(character) not in _HIDDEN and character not in INVISIBLE


def check_input(schema: Any) -> dict[str, Any]:
    """Return the schema of a tool's arguments if providers accept it, the proxy can check arguments with it,
    and a person can see all of it.

    Texts that only describe may have invisible characters, since models do not get these. Raises
    :class:`UnusableDefinition`.
    """
    try:
        check_schema(schema, "")
        compile_schema(schema)
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
    """Read one definition; raise :class:`UnusableDefinition` if it is invalid."""
    if not isinstance(tool, dict):
        raise UnusableDefinition("its definition is not a JSON object")
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
        raise UnusableDefinition(f"its {key} is not text")
    return text[:_MAX_KEPT]


def _is_small_object(schema: Any) -> bool:
    """Return whether an output schema can be kept; it is used for no check that matters."""
    if not isinstance(schema, dict):
        return False
    try:
        return len(json.dumps(schema)) <= _MAX_SCHEMA
    except (ValueError, RecursionError):
        return False


def _hints(annotations: Any) -> dict[str, bool]:
    """Return the hints that the specification defines; others are dropped."""
    if not isinstance(annotations, dict):
        return {}
    return {hint: annotations[hint] for hint in _HINTS if isinstance(annotations.get(hint), bool)}


def _texts(value: Any) -> list[str]:
    """Return every text in a schema, keys included; the depth of the schema was checked before."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [*(key for key in value), *(text for child in value.values() for text in _texts(child))]
    if isinstance(value, list):
        return [text for child in value for text in _texts(child)]
    return []


def _hides(text: str) -> bool:
    """Return whether a text has characters that a person does not see; ``\\r`` is not one of them."""
    return visible_text(text) != text.replace("\r", "").strip()


def _shown_schema(schema: Any) -> Any:
    """Return the schema without the invisible characters in describing texts, and otherwise unchanged."""
    if isinstance(schema, list):
        return [_shown_schema(member) for member in schema]
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
    """Return the path, cut, of the first text with invisible characters; ``None`` if there is none."""
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
    return next((inside for child, where in below if (inside := _hidden_path(child, where))), None)
