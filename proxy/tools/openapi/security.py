"""Find where an operation's requests carry the credentials of the API's connection.

Sources: "Security Scheme Object" and "Security Requirement Object" of the OpenAPI Specification 3.1.1.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

from proxy.base.plain_text import plain_text
from proxy.tools.access.hosts import check_headers
from proxy.tools.mcp.definitions import UnusableDefinition
from proxy.tools.openapi.api import Api
from proxy.tools.openapi.document import Document

_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")
_BEARER: Final = {"where": "header", "name": "Authorization", "form": "bearer"}
_BASIC: Final = {**_BEARER, "form": "basic"}


def credentials_of(document: Document, operation: Mapping[str, Any], api: Api) -> dict[str, str] | None:
    """Return the fields of the :class:`~proxy.tools.access.placement.Placement`; ``None`` if requests carry
    no credentials.

    Raises :class:`UnusableDefinition` for an operation that needs credentials which the API's connection
    cannot give. A document that says nothing about credentials gets a bearer token, if there is a connection.
    """
    needed = operation.get("security", document.root.get("security"))
    if needed is None:
        return dict(_BEARER) if api.connection else None
    document.count(len(needed) if isinstance(needed, list) else 0)
    ways = [way for way in needed if isinstance(way, Mapping)] if isinstance(needed, list) else []
    reasons = []
    for way in ways:
        places = {name: _placement(document, str(name)) for name in way}
        lacking = {name: place for name, place in places.items() if not _is_set(place, api)}
        named = plain_text(", ".join(map(str, lacking)), 100)
        if way and not lacking:
            return None
        if None in lacking.values():
            reasons.append(f"credentials of a kind that cannot be sent ({named})")
        elif len(lacking) > 1:
            reasons.append(f"several credentials at once ({named}): set all but one in {api.setting}.headers")
        elif lacking and not api.connection:
            reasons.append(f"credentials ({named}): name them in {api.setting}.connection")
        elif lacking:
            return next(iter(lacking.values()))
    if not ways or {} in ways:
        return None
    raise UnusableDefinition(f"it needs {' or '.join(dict.fromkeys(reasons))}")


def _is_set(place: Mapping[str, str] | None, api: Api) -> bool:
    """Return whether a header that the operator sets carries these credentials."""
    return place is not None and place["where"] == "header" and api.has_header(place["name"])


def _placement(document: Document, name: str) -> dict[str, str] | None:
    """Return where a scheme's credentials go; ``None`` for a scheme that is not supported."""
    components = document.root.get("components")
    schemes = components.get("securitySchemes") if isinstance(components, Mapping) else None
    if not isinstance(schemes, Mapping) or name not in schemes:
        raise UnusableDefinition(
            f"it needs the security scheme {name[:60]!r}, which the document does not have"
        )
    scheme = document.followed(schemes[name])
    match scheme.get("type"):
        case "oauth2" | "openIdConnect":
            return dict(_BEARER)
        case "http":
            word = str(scheme.get("scheme")).lower()
            return {"bearer": dict(_BEARER), "basic": dict(_BASIC)}.get(word)
        case "apiKey":
            where, key = scheme.get("in"), scheme.get("name")
            if where not in ("header", "query", "cookie") or not isinstance(key, str):
                return None
            if not _NAME.fullmatch(key):
                return None
            try:
                check_headers([key] if where == "header" and key.lower() != "authorization" else [])
            except ValueError:
                return None
            return {"where": str(where), "name": key, "form": "token"}
    return None
