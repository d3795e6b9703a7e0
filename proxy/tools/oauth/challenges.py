"""Parse the challenge in the ``WWW-Authenticate`` header of a refused request.

Sources: RFC 9110, section 11.6.1 (the header); RFC 6750, section 3 (``scope``, ``error``); RFC 9728, section
5.1 (``resource_metadata``).
"""

import re
from typing import Final
from urllib.request import parse_http_list

from msgspec import Struct

from proxy.tools.oauth.parameters import read_scopes

_MAX_HEADER: Final = 8192
_TOKEN = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_ITEM = re.compile(rf"(?:({_TOKEN})\s+)?({_TOKEN})\s*=\s*(.*)", re.DOTALL)


class Challenge(Struct, frozen=True):
    """A challenge of the scheme ``Bearer``; its content is untrusted.

    ``resource_metadata`` is the URL of the document about the resource, ``error`` the code for the refusal.
    A field that the server does not send is empty.
    """

    resource_metadata: str = ""
    scopes: tuple[str, ...] = ()
    error: str = ""


def read_challenge(header: str) -> Challenge:
    """Return the ``Bearer`` challenge of a header, which may have several; an empty one if there is none."""
    scheme = ""
    parameters: dict[str, str] = {}
    for item in parse_http_list(header[:_MAX_HEADER]):
        parsed = _ITEM.fullmatch(item.strip())
        if parsed is None:
            scheme = item.strip().lower()
            continue
        scheme = parsed[1].lower() if parsed[1] else scheme
        if scheme == "bearer":
            parameters.setdefault(parsed[2].lower(), _unquoted(parsed[3]))
    place, error = parameters.get("resource_metadata", ""), parameters.get("error", "")
    return Challenge(place[:2048], read_scopes(parameters.get("scope")), error[:64])


def _unquoted(value: str) -> str:
    text = value.strip()
    if len(text) > 1 and text.startswith('"') and text.endswith('"'):
        return re.sub(r"\\(.)", r"\1", text[1:-1])
    return text
