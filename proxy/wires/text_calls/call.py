"""Checks that a call in a text has a declared name, and arguments that are an object.

It repairs common mistakes of models in JSON: single quotes, and commas before a closing bracket.
"""

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

import orjson
from msgspec import Struct

from proxy.json.size import count_values
from proxy.json.splice import elements, members
from proxy.wires.text_calls.source import NotACall

_PIECE: Final = re.compile(r"""["',]|[^"',]++""")
_IN_STRING: Final = {
    '"': re.compile(r'[^"\\]*+(?:\\.[^"\\]*+)*"', re.DOTALL),
    "'": re.compile(r"[^'\\]*+(?:\\.[^'\\]*+)*'", re.DOTALL),
}
_BEFORE_END: Final = re.compile(r"\s*+[}\]]")
_ESCAPED: Final = re.compile(r"\\.|\"", re.DOTALL)


def repaired_json(text: str) -> tuple[str, list[str]]:
    """Return a repaired JSON text, and its mistakes, each once. If there are none, nothing was changed."""
    made: list[str] = []
    mistakes: dict[str, None] = {}
    at = 0
    while (piece := _PIECE.match(text, at)) is not None:
        sign, at = piece[0], piece.end()
        if sign in _IN_STRING:
            whole = _IN_STRING[sign].match(text, at)
            if whole is None:
                return text, []
            at = whole.end()
            if sign == "'":
                mistakes["single quotes"] = None
                made.append(f'"{_ESCAPED.sub(_double_quoted, whole[0][:-1])}"')
            else:
                made.append(sign + whole[0])
        elif sign == "," and _BEFORE_END.match(text, at):
            mistakes["a trailing comma"] = None
        else:
            made.append(sign)
    return "".join(made), list(mistakes)


def _double_quoted(match: re.Match[str]) -> str:
    """Return an escape or a double quote of a single-quoted string as a double-quoted string writes it."""
    if match[0] == "\\'":
        return "'"
    return '\\"' if match[0] == '"' else match[0]


_MOST_VALUES: Final = 100_000
_NUMBER: Final = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?")
_INTEGER: Final = re.compile(r"-?(?:0|[1-9]\d{0,18})")
_ORDER: Final = ("null", "boolean", "integer", "number", "array", "object", "string")
"""The order in which types are tried, the most exact first: a value gets the first allowed type that fits."""


class TextCall(Struct, frozen=True):
    """A call that was found in a text.

    ``arguments`` is the text of a JSON object, unchanged if the model wrote JSON. ``call_id`` is empty if
    the form has no ids.
    """

    name: str
    arguments: str
    call_id: str = ""


class Declared:
    """The tools that a model was offered, with what the reading of calls needs.

    ``schemas`` returns the JSON Schema of each tool's arguments; it is only called for forms that write
    values without types. With ``repair`` some mistakes are repaired; ``repaired`` names them.
    """

    def __init__(
        self,
        names: Collection[str],
        schemas: Callable[[], Mapping[str, Mapping[str, Any]]] = dict,
        *,
        repair: bool = False,
    ) -> None:
        self.names = frozenset(names)
        self.repair = repair
        self.repaired: dict[str, None] = {}
        self._schemas = schemas
        self._known: Mapping[str, Mapping[str, Any]] | None = None

    def note(self, what: str) -> None:
        """Record a repaired mistake, or raise :class:`NotACall` if repairs are off."""
        if not self.repair:
            raise NotACall
        self.repaired[what] = None

    def name_of(self, written: str) -> str:
        """Return the declared name that the model means. Raises :class:`NotACall` if there is none."""
        if written in self.names:
            return written
        plain = written.removeprefix("functions.")
        if plain in self.names:
            return plain
        raise NotACall

    def call(self, name: str, arguments: str, call_id: str = "") -> TextCall:
        """Return a call; ``arguments`` are JSON text."""
        name = self.name_of(name)
        return TextCall(name, self.object(arguments), call_id)

    def object(self, text: str) -> str:
        """Return the text of one JSON object. Raises :class:`NotACall` for anything else."""
        raw = self.json(text)
        if raw[:1] != "{":
            raise NotACall
        return raw

    def json(self, text: str) -> str:
        """Return JSON as written, or repaired if allowed and possible. Raise :class:`NotACall` otherwise."""
        text = text.strip()
        if _parses(text):
            return text
        if not self.repair:
            raise NotACall
        mended, mistakes = repaired_json(text)
        if not mistakes or not _parses(mended):
            raise NotACall
        for mistake in mistakes:
            self.note(mistake)
        return mended

    def named(
        self,
        text: str,
        *,
        names: tuple[str, ...] = ("name",),
        arguments: tuple[str, ...] = ("arguments",),
        other: tuple[str, ...] = ("parameters",),
    ) -> TextCall:
        """Return a call from an object with its name and arguments. ``other`` are keys that models use
        instead of ``arguments`` by mistake; they count as a repair."""
        parts = members(self.object(text).encode("utf-8", "surrogatepass"))
        if "function" in parts and parts["function"][:1] == b"{":
            parts = members(parts["function"])
        name = next((orjson.loads(parts[key]) for key in names if key in parts), None)
        if not isinstance(name, str):
            raise NotACall
        raw = next((parts[key] for key in arguments if key in parts), None)
        if raw is None and (key := next((key for key in other if key in parts), "")):
            self.note(f"the arguments stand under {key}")
            raw = parts[key]
        given = raw.decode("utf-8", "surrogatepass") if raw is not None else "{}"
        if given[:1] == '"':
            given = orjson.loads(given).strip() or "{}"
        elif given == "null":
            given = "{}"
        return self.call(name, given)

    def listed(self, text: str, **keys: tuple[str, ...]) -> list[TextCall]:
        """Return the calls of a list of such objects."""
        raw = self.json(text)
        if raw[:1] != "[":
            raise NotACall
        raw_calls = elements(raw.encode("utf-8", "surrogatepass"))
        if not raw_calls:
            raise NotACall
        return [self.named(item.decode("utf-8", "surrogatepass"), **keys) for item in raw_calls]

    def typed(self, name: str, values: Mapping[str, str]) -> TextCall:
        """Return a call whose arguments were written without types. The tool's schema provides the types."""
        name = self.name_of(name)
        if self._known is None:
            self._known = self._schemas()
        properties = self._known.get(name, {}).get("properties")
        known = properties if isinstance(properties, Mapping) else {}
        made = {key: _typed(value, known.get(key)) for key, value in values.items()}
        return TextCall(name, orjson.dumps(made).decode())


def _parses(text: str) -> bool:
    raw = text.encode("utf-8", "surrogatepass")
    if len(raw) > _MOST_VALUES and count_values(raw, _MOST_VALUES) > _MOST_VALUES:
        return False
    try:
        orjson.loads(raw)
    except orjson.JSONDecodeError:
        return False
    return True


def _types(schema: Any) -> set[str]:
    """Return the types that a schema allows; an empty set if it names none."""
    if not isinstance(schema, Mapping):
        return set()
    kinds = schema.get("type")
    types = {kinds} if isinstance(kinds, str) else set()
    if isinstance(kinds, list):
        types = {kind for kind in kinds if isinstance(kind, str)}
    if not types and isinstance(values := schema.get("enum"), list):
        types = {_TYPE_OF[type(value)] for value in values if type(value) in _TYPE_OF}
    for key in ("anyOf", "oneOf"):
        if isinstance(choices := schema.get(key), list):
            types = types.union(*(_types(choice) for choice in choices))
    return types


_TYPE_OF: Final = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}


def _typed(text: str, schema: Any) -> Any:
    """Return a value with a type that its schema allows; a string if the value fits none of them."""
    types = _types(schema)
    plain = text.strip()
    for kind in _ORDER:
        if kind not in types:
            continue
        match kind:
            case "null" if plain.lower() in ("null", "none"):
                return None
            case "boolean" if plain.lower() in ("true", "false"):
                return plain.lower() == "true"
            case "integer" if _INTEGER.fullmatch(plain):
                return orjson.Fragment(plain)
            case "number" if _NUMBER.fullmatch(plain):
                return orjson.Fragment(plain)
            case "array" if plain[:1] == "[" and _parses(plain):
                return orjson.Fragment(plain)
            case "object" if plain[:1] == "{" and _parses(plain):
                return orjson.Fragment(plain)
            case "string":
                return text
    return text
