"""The parts of OAuth requests that an operator may set: scopes and further parameters."""

import re
from typing import Final

_OFFLINE: Final = "offline_access"
_MAX_SCOPES: Final = 100
_SCOPE = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]{1,256}")

PROTOCOL_PARAMETERS: Final = frozenset(
    {
        "client_id",
        "client_secret",
        "code_challenge",
        "code_challenge_method",
        "redirect_uri",
        "request",
        "request_uri",
        "resource",
        "response_mode",
        "response_type",
        "scope",
        "state",
    }
)
"""The parameters of an authorization request that an operator may not set."""


def read_scopes(value: object) -> tuple[str, ...]:
    """Return the scopes in a space-separated string or a list, without duplicates.

    Invalid scopes (RFC 6749, section 3.3) are left out. The result has at most 100 scopes of at most 256
    characters.
    """
    names = value.split(" ") if isinstance(value, str) else value if isinstance(value, list | tuple) else ()
    scopes = [word for word in names if isinstance(word, str) and _SCOPE.fullmatch(word)]
    return tuple(dict.fromkeys(scopes))[:_MAX_SCOPES]


def join_scopes(*scopes: tuple[str, ...]) -> tuple[str, ...]:
    """Join tuples of scopes, without duplicates, in this order."""
    return tuple(dict.fromkeys(scope for some in scopes for scope in some))


def granted_scopes(asked: tuple[str, ...], requested: tuple[str, ...]) -> tuple[str, ...]:
    """Return the granted scopes: those of a token response, or the requested ones if it names none (RFC
    6749, section 5.1).

    A requested ``offline_access`` stays: it says that there are refresh tokens, and some servers do not
    repeat it.
    """
    if not asked:
        return requested
    return join_scopes(asked, (_OFFLINE,)) if _OFFLINE in requested else asked
