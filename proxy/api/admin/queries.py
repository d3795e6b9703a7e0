"""Reads the queries of the JSON API of ``/admin`` and ``/ui/api``, and writes its answers."""

from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import parse_qsl

from aiohttp import web

from proxy.api.admin.json_output import to_line
from proxy.api.reference.admin_paths import DEFAULT_LIMIT, MOST_LIMIT
from proxy.base.errors import RequestError

_MOST_PARAMETERS: Final = 20
_LONGEST_VALUE: Final = 256
_TRUTH: Final = {"true": True, "false": False}


def page(rows: Sequence[dict[str, Any]], *, more: bool) -> dict[str, Any]:
    """Return a list in the form of the API's own lists; the next page starts after ``last_id``."""
    return {
        "object": "list",
        "data": rows,
        "first_id": rows[0]["id"] if rows else None,
        "last_id": rows[-1]["id"] if rows else None,
        "has_more": more,
    }


def json_answer(value: dict[str, Any]) -> web.Response:
    return web.Response(
        body=_encoded(value).encode("ascii"),
        content_type="application/json",
        headers={"Cache-Control": "no-store"},
    )


def _encoded(value: dict[str, Any]) -> str:
    """Encode an object as one call of the encoder would; one call would block all other threads for too
    long."""
    members = []
    for name, part in value.items():
        text = f"[{', '.join(map(to_line, part))}]" if isinstance(part, list) else to_line(part)
        members.append(f"{to_line(name)}: {text}")
    return f"{{{', '.join(members)}}}"


def parse_query(query: str, *known: str) -> dict[str, str]:
    """Return the parameters of a query; raise RequestError for one that is unknown, repeated or too long."""
    values: dict[str, str] = {}
    try:
        pairs = parse_qsl(query, keep_blank_values=True, max_num_fields=_MOST_PARAMETERS, errors="strict")
    except ValueError:
        raise RequestError(
            400, f"The query must be UTF-8 and have at most {_MOST_PARAMETERS} parameters.", param="query"
        ) from None
    for name, value in pairs:
        if name not in known:
            there = f"; use {', '.join(known)}" if known else ""
            raise RequestError(
                400, f"The query parameter {name[:40]!r} is not known here{there}.", param=name[:40]
            )
        if name in values:
            raise RequestError(400, f"The query parameter {name} is given twice.", param=name)
        if len(value) > _LONGEST_VALUE:
            raise RequestError(
                400, f"The query parameter {name} is longer than {_LONGEST_VALUE} characters.", param=name
            )
        values[name] = value
    return values


def read_limit(text: str | None) -> int:
    """Return the number of rows that a query asks for; raise :class:`RequestError` (400) if
    invalid."""
    if text is None:
        return DEFAULT_LIMIT
    if not (text.isascii() and text.isdecimal() and 1 <= int(text) <= MOST_LIMIT):
        raise RequestError(400, f"limit must be a number from 1 to {MOST_LIMIT}.", param="limit")
    return int(text)


def read_bool(query: Mapping[str, str], name: str) -> bool:
    value = _TRUTH.get(query.get(name, "false"))
    if value is None:
        raise RequestError(400, f"{name} must be true or false.", param=name)
    return value
