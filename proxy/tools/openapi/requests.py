"""Make the request of a call from what was pinned of its operation, and from the model's arguments.

The arguments fit the schema, but they are a model's. None of them leads to another path, host, header or
parameter than the pinned ones.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import unquote

from msgspec import Struct, field

from proxy.tools.access.hosts import host_entry
from proxy.tools.access.placement import Placement
from proxy.tools.openapi.document import checked_base
from proxy.tools.openapi.operations import is_form
from proxy.tools.openapi.values import (
    decoded,
    form_pairs,
    header_text,
    path_text,
    query_pairs,
    refused,
    scalar,
)

_ACCEPT: Final = "application/json, text/plain;q=0.9, */*;q=0.1"


class Request(Struct, frozen=True):
    """A request without its credentials. ``url`` is encoded; ``host`` is the only one that it may reach."""

    method: str
    url: str
    host: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    credentials: Placement | None = None


def make_request(pinned: Mapping[str, Any], arguments: Mapping[str, Any]) -> Request:
    """Return the request of a call.

    Raises :class:`~proxy.base.errors.ToolFailure` for an argument that no request can carry, and
    :class:`~proxy.tools.mcp.definitions.UnusableDefinition` for a server that cannot be called.
    """
    base = checked_base(pinned["base"])
    given = [
        (sent, arguments[sent["argument"]])
        for sent in pinned["parameters"]
        if arguments.get(sent["argument"]) is not None
    ]
    for sent in pinned["parameters"]:
        if sent["in"] == "path" and arguments.get(sent["argument"]) is None:
            raise refused(sent["argument"], "is null, and stands in a path")
    placement = pinned["credentials"] and Placement(**pinned["credentials"])
    headers = {"Accept": _ACCEPT}
    for sent, value in given:
        if sent["in"] == "header":
            headers[sent["name"]] = header_text(sent, value, sent["argument"])
    if cookies := list(_cookies(given)):
        headers["Cookie"] = "; ".join(cookies)
    body, media_type = _body(pinned["body"], arguments)
    if body is not None:
        headers["Content-Type"] = media_type
    url = base + _path(pinned["path"], given)
    named = {sent["name"]: sent["argument"] for sent in pinned["parameters"] if sent["in"] == "query"}
    if pairs := list(_query(given, named, placement)):
        url += "?" + "&".join(f"{name}={value}" for name, value in pairs)
    return Request(pinned["method"], url, host_entry(base), headers, body, placement)


_Given = list[tuple[Mapping[str, Any], Any]]


def _path(path: str, given: _Given) -> str:
    for sent, value in given:
        if sent["in"] == "path":
            path = path.replace(f"{{{sent['name']}}}", path_text(sent, value, sent["argument"]))
    named = ", ".join(sent["argument"] for sent, _ in given if sent["in"] == "path")
    # Servers disagree about what follows a semicolon in a segment: a parameter of it, or a part of it.
    if any(part.partition(";")[0] in (".", "..") for part in decoded(path, named).split("/")):
        raise refused(named, 'may not make a part of the path "." or ".."')
    return path


def _query(given: _Given, named: Mapping[str, str], placement: Placement | None) -> Iterator[tuple[str, str]]:
    """Yield the pairs of the query; raise :class:`ToolFailure` for one in the place of the credentials, or of
    another argument, for which a key may have bounds: the members of an object may have any names.

    ``named`` maps the names of all parameters of the query to their arguments.
    """
    own = placement.name if placement is not None and placement.where == "query" else None
    for sent, value in given:
        if sent["in"] == "query":
            for name, text in query_pairs(sent, value, sent["argument"]):
                plain, argument = unquote(name), sent["argument"]
                if plain == own or named.get(plain, argument) != argument:
                    raise refused(argument, f"may not set {plain}")
                yield name, text


def _cookies(given: _Given) -> Iterator[str]:
    """Yield the cookies; a list or an object is one value with commas, since a cookie has one value."""
    for sent, value in given:
        if sent["in"] == "cookie":
            pairs = list(query_pairs({**sent, "explode": False}, value, sent["argument"]))
            yield from (f"{sent['name']}={text}" for _, text in pairs)


def _body(sent: Mapping[str, Any] | None, arguments: Mapping[str, Any]) -> tuple[bytes | None, str]:
    """Return the body and its type; ``None`` if the call has none."""
    if sent is None or sent["argument"] not in arguments:
        return None, ""
    value, argument, media_type = arguments[sent["argument"]], sent["argument"], sent["type"]
    if media_type.startswith("text/"):
        return scalar(value, argument).encode("utf-8", "replace"), media_type
    if not is_form(media_type):
        # In ASCII, so that a lone surrogate, which no UTF-8 can carry, stays what the model wrote.
        return json.dumps(value, separators=(",", ":")).encode("ascii"), media_type
    if not isinstance(value, Mapping):
        raise refused(argument, "must be an object, since it is sent as a form")
    pairs = form_pairs(sent["encoding"], value, argument, sent.get("fields", ()))
    text = "&".join(f"{name}={part}" for name, part in pairs)
    return text.replace("%20", "+").encode("ascii"), media_type
