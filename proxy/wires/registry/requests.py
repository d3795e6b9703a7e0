"""What a request body refers to and decides, in the fields of all dialects: an upstream may read any."""

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from proxy.base.errors import RequestError
from proxy.json.splice import join_object, members
from proxy.wires.dialect import Dialect
from proxy.wires.registry.table import BY_WIRE

_FIELDS: Final = tuple(dialect.fields for dialect in BY_WIRE.values())


def _names(field: str) -> tuple[str, ...]:
    """Return the names of a field in the dialects that have it."""
    return tuple(dict.fromkeys(name for fields in _FIELDS if (name := getattr(fields, field))))


class Member(NamedTuple):
    """A member of a body and its value, which is not null."""

    name: str
    value: Any


def _reader(field: str) -> Callable[[Mapping[str, Any]], Member | None]:
    names = _names(field)

    def member_of(payload: Mapping[str, Any]) -> Member | None:
        for name in names:
            if (value := payload.get(name)) is not None:
                return Member(name, value)
        return None

    return member_of


continued_by: Final = _reader("continues")
"""Returns the member with the id of the stored response that a body continues; ``None`` for none."""

conversation_of: Final = _reader("conversation")
"""Returns the member that names a conversation which the provider keeps; ``None`` for none."""

prompt_of: Final = _reader("stored_prompt")
"""Returns the member that is an object if it names a prompt which the provider keeps; ``None`` for none."""

background_of: Final = _reader("background")
"""Returns the member that says whether the answer comes in the background; ``None`` for none."""

MODEL_PATHS: Final = tuple(path for fields in dict.fromkeys(_FIELDS) for path in fields.models)
"""The paths at which a body may name further models."""

FURTHER_MODELS: Final = tuple(path[0] for path in MODEL_PATHS if len(path) == 1)
"""Members in which providers accept further models to fall back on."""

CHOOSING: Final = tuple(dict.fromkeys(name for fields in _FIELDS for name in fields.choosing))
"""Members by which a provider chooses models that the body does not name."""

TOOL_HOLDERS: Final = tuple(name for fields in _FIELDS for name in fields.tool_holders)
"""Lists whose entries may have tools."""

_SWITCHES: Final = ("stream", *_names("background"))
"""Members that decide whether usage is reported."""

_MOST_TURNS: Final = 20_000
_MOST_TOOLS: Final = 2_000
LISTS: Final[Mapping[str, int]] = {
    **{fields.turns: _MOST_TURNS for fields in _FIELDS},
    **{name: _MOST_TOOLS for fields in _FIELDS for name in fields.tools},
}
"""The most entries of a request's long lists. No model takes so many, and they cost the proxy work."""

_USAGE: Final = frozenset(fields.usage[0] for fields in _FIELDS if fields.usage)
FEWEST_COUNTED: Final = min(LISTS.values())
"""No list of fewer entries is too long."""

TRANSPORT: Final = frozenset({"stream", *_USAGE})
"""Members that describe the transport of the answer, not what is asked."""

_DECIDED_ON: Final = frozenset({"model", "tools", *_SWITCHES}).union(*(one.deciding for one in _FIELDS))
"""Members that decide what a request may reach, where it goes, and how it is counted."""


def check_names(payload: Mapping[str, Any]) -> None:
    """Refuse a member whose name differs from one that the proxy decides on only in upper and lower case.

    Readers in Go treat the two as the same member, and use the last one (encoding/json folds names). Raises
    :class:`RequestError` (400).
    """
    for name in payload:
        if name not in _DECIDED_ON and (folded := name.casefold()) in _DECIDED_ON:
            raise RequestError(400, f"Write {folded!r} in lower case.", param=name[:40])


def check_switches(payload: Mapping[str, Any]) -> None:
    """Raise :class:`RequestError` (400) for a switch that is neither true nor false.

    Some upstreams treat 1 or "yes" as true. Then their answer would not be what the proxy expects and counts.
    """
    for field in _SWITCHES:
        value = payload.get(field)
        if value is not None and value is not True and value is not False:
            raise RequestError(400, f"{field} must be true or false.", param=field)


def with_usage_asked(dialect: Dialect, raw: bytes, payload: Mapping[str, Any]) -> bytes:
    """Return a body that asks for usage in its stream; the same bytes if the client's own does.

    ``payload`` is ``raw``, parsed.
    """
    member, field = dialect.fields.usage
    options = payload.get(member)
    if isinstance(options, dict) and options.get(field) is True:
        return raw
    parts = members(raw)
    given = members(parts[member]) if isinstance(options, dict) else {}
    return join_object({**parts, member: join_object({**given, field: b"true"})})


def check_counted(payload: Mapping[str, Any]) -> None:
    """Check names and switches by which usage is reported; raises :class:`RequestError` (400)."""
    check_names(payload)
    for member in _USAGE:
        if isinstance(options := payload.get(member), dict):
            check_names(options)
    check_switches(payload)


def named_conversation(payload: Mapping[str, Any]) -> str:
    """Return the id of the conversation that a request names, or an empty text.

    Responses has ``conversation``, an id or an object with one (openai-python,
    ``types/responses/response_create_params.py``); the other dialects have no such member.
    """
    named = payload.get("conversation")
    if isinstance(named, dict):
        named = named.get("id")
    return named[:200] if isinstance(named, str) else ""
