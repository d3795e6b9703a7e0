"""Write the values of parameters and of forms as an operation's document says (``style``, ``explode``).

Sources: "Style Values", "Style Examples" and appendix C of the OpenAPI Specification 3.0.4 and 3.1.1, which
refer to RFC 6570. For deeper values of ``deepObject``, which the specification leaves open, the form is the
one that servers with PHP's and Rack's brackets read: ``items[0][price]``.
"""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote, unquote

from proxy.base.errors import ToolFailure

_RESERVED: Final = ":/?@!$'()*,;"
"""The reserved characters that ``allowReserved`` leaves as they are; the others would end the value."""

_DELIMITERS: Final[Mapping[str, str]] = {"form": ",", "spaceDelimited": "%20", "pipeDelimited": "%7C"}
_DEEPEST: Final = 16
_MOST_DECODED: Final = 8


def refused(argument: str, reason: str) -> ToolFailure:
    """Return the failure for an argument that no request can carry."""
    return ToolFailure(f"{argument} {reason}", code="invalid_arguments")


def scalar(value: Any, argument: str) -> str:
    """Return a single value as text; raise :class:`ToolFailure` for an object or a list."""
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping | list):
        raise refused(argument, "has a value that is nested more deeply than this API's form allows")
    return json.dumps(value)  # true, false, null, and numbers.


def encoded(text: str, argument: str, safe: str = "") -> str:
    """Return a text in which everything that could mean something else is percent-encoded."""
    try:
        return quote(text, safe=safe)
    except UnicodeEncodeError:
        raise refused(argument, "has a character that is no Unicode text") from None


def query_pairs(sent: Mapping[str, Any], value: Any, argument: str) -> Iterator[tuple[str, str]]:
    """Yield the names and values, both encoded, of a parameter in the query or of a field of a form.

    ``sent`` has its ``name``, ``style`` and ``explode``, and perhaps ``json`` and ``reserved``.
    """
    safe = _RESERVED if sent.get("reserved") else ""
    name = encoded(sent["name"], argument)

    def text(part: Any) -> str:
        return encoded(scalar(part, argument), argument, safe)

    if sent.get("json"):
        yield name, encoded(json.dumps(value, ensure_ascii=False), argument)
    elif sent["style"] == "deepObject":
        yield from _deep(name, value, argument, 0)
    elif isinstance(value, list) and sent["explode"]:
        yield from ((name, text(part)) for part in value)
    elif isinstance(value, Mapping) and sent["explode"]:
        yield from ((encoded(key, argument), text(part)) for key, part in value.items() if part is not None)
    elif isinstance(value, list | Mapping):
        if parts := [text(part) for part in _flat(value)]:
            yield name, _DELIMITERS[sent["style"]].join(parts)
    else:
        yield name, text(value)


def path_text(sent: Mapping[str, Any], value: Any, argument: str) -> str:
    """Return what stands in a path in the place of a parameter, encoded.

    Raises :class:`ToolFailure` for a value that could lead to another path: with a slash or a backslash,
    also an encoded one, or with a control character.
    """

    def text(part: Any) -> str:
        made = scalar(part, argument)
        read = decoded(made, argument)
        if any(character < " " or character in "/\\\x7f" for character in read):
            raise refused(argument, "may have no slash, no backslash and no control character")
        return encoded(made, argument)

    name = encoded(sent["name"], argument)
    style, explodes = sent["style"], sent["explode"]
    if sent.get("json"):
        parts = [text(json.dumps(value, ensure_ascii=False))]
    elif isinstance(value, Mapping) and explodes:
        parts = [f"{text(key)}={text(part)}" for key, part in value.items()]
    elif isinstance(value, list | Mapping):
        parts = [text(part) for part in _flat(value)]
    else:
        parts = [text(value)]
    if not any(parts):
        raise refused(argument, "is empty, and stands in a path")
    if style == "label":
        return "." + ("." if explodes else ",").join(parts)
    if style == "matrix" and isinstance(value, Mapping) and explodes:
        return "".join(f";{part}" for part in parts)
    if style == "matrix":
        return "".join(f";{name}={part}" for part in (parts if explodes else [",".join(parts)]))
    return ",".join(parts)


def header_text(sent: Mapping[str, Any], value: Any, argument: str) -> str:
    """Return the value of a header, in which nothing is encoded; raise :class:`ToolFailure` for a value that
    a header cannot have, such as one with a line break."""
    if sent.get("json"):
        text = json.dumps(value)
    elif isinstance(value, Mapping) and sent["explode"]:
        text = ",".join(f"{key}={scalar(part, argument)}" for key, part in value.items())
    elif isinstance(value, list | Mapping):
        text = ",".join(scalar(part, argument) for part in _flat(value))
    else:
        text = scalar(value, argument)
    if any(not " " <= character <= "~" for character in text):
        raise refused(argument, "may have only printable ASCII characters, since it is sent as a header")
    return text.strip()


def form_pairs(
    encodings: Mapping[str, Mapping[str, Any]],
    value: Mapping[str, Any],
    argument: str,
    fields: Collection[str] = (),
) -> Iterator[tuple[str, str]]:
    """Yield the names and values, both encoded, of a form's fields. ``fields`` are their names in the schema.

    Without an encoding of its own, a field that is an object is sent as JSON, and each element of a list as
    a field. Source: "Encoding Object" of version 3.0.4, ``contentType``.

    Raises :class:`ToolFailure` if a member of an object would stand for another field, whose value the schema
    or a key may bound.
    """
    others = {*fields, *value}
    for key, part in value.items():
        where = f"{argument}.{key}"
        nested = isinstance(part, Mapping) or (
            isinstance(part, list) and any(isinstance(inner, Mapping | list) for inner in part)
        )
        encoding = encodings.get(key) or {"style": "form", "explode": True, "json": nested}
        if part is not None:
            for name, text in query_pairs({**encoding, "name": key}, part, where):
                if (plain := unquote(name)) != key and plain in others:
                    raise refused(where, f"may not set {plain}")
                yield name, text


def _flat(value: Any) -> Sequence[Any]:
    """Return the elements of a list, or the names and values of an object one after the other."""
    if isinstance(value, Mapping):
        return [part for pair in value.items() for part in pair]
    elements: Sequence[Any] = value
    return elements


def _deep(name: str, value: Any, argument: str, depth: int) -> Iterator[tuple[str, str]]:
    if depth > _DEEPEST:
        raise refused(argument, "is nested too deeply")
    members: Any
    if isinstance(value, Mapping):
        members = value.items()
    elif isinstance(value, list):
        members = enumerate(value)
    else:
        yield name, encoded(scalar(value, argument), argument)
        return
    for key, part in members:
        if part is not None:
            yield from _deep(f"{name}%5B{encoded(str(key), argument)}%5D", part, argument, depth + 1)


def decoded(text: str, argument: str) -> str:
    """Return a text after all its percent-encodings, also those of percent signs, have been decoded.

    Raises :class:`ToolFailure` for a text that was encoded too often.
    """
    for _ in range(_MOST_DECODED):
        before, text = text, unquote(text)
        if text == before:
            return text
    raise refused(argument, "is percent-encoded too many times")
