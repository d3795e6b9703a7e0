"""Request tokens from a token endpoint and read its response: RFC 6749, sections 5.1 and 5.2."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeGuard

from proxy.tools.contract.capabilities import HttpFailure
from proxy.tools.oauth.clients import Client, with_authentication
from proxy.tools.oauth.parameters import read_scopes
from proxy.tools.oauth.port import OAuthFault, OAuthHttp

_MAX_TOKEN: Final = 16384
_ERRORS: Final = frozenset(
    {
        "invalid_client",
        "invalid_grant",
        "invalid_request",
        "invalid_scope",
        "invalid_target",
        "unauthorized_client",
        "unsupported_grant_type",
    }
)
"""The error codes of RFC 6749, section 5.2, and RFC 8707, section 2."""


@dataclass(frozen=True, slots=True)
class TokenAnswer:
    """Tokens from an endpoint. ``refresh_token`` may be empty; ``lasts_s`` is infinite if unknown.

    ``id_token`` is that of an OpenID provider, empty otherwise.
    """

    access_token: str = field(repr=False)
    refresh_token: str = field(repr=False)
    lasts_s: float
    scopes: tuple[str, ...] = ()
    id_token: str = field(default="", repr=False)


async def ask_for_tokens(
    http: OAuthHttp, endpoint: str, client: Client, fields: Mapping[str, str]
) -> TokenAnswer:
    """Request tokens from an endpoint; raise :class:`~proxy.tools.oauth.port.OAuthFault` if that fails.

    Only tokens, their lifetime and scopes, or a known error code of the response leave this function.
    """
    form, authorization = with_authentication(client, fields)
    try:
        answer = await http.post_form(endpoint, form, authorization)
    except HttpFailure as failure:
        code = _error_of(failure.json)
        why = code or ("no usable answer" if failure.status else str(failure))
        raise OAuthFault(why, status=failure.status, code=code) from None
    kind = answer.get("token_type", "Bearer") if isinstance(answer, dict) else ""
    access = answer.get("access_token") if isinstance(answer, dict) else None
    if not is_token(access) or not isinstance(kind, str) or kind.lower() != "bearer":
        raise OAuthFault("no bearer token in its answer", status=200)
    refresh, identity = answer.get("refresh_token"), answer.get("id_token")
    return TokenAnswer(
        access,
        refresh if is_token(refresh) else "",
        read_seconds(answer.get("expires_in")),
        read_scopes(answer.get("scope")),
        identity if is_token(identity) else "",
    )


def is_token(value: object) -> TypeGuard[str]:
    """Return whether a value is a token that a header can carry."""
    if not isinstance(value, str) or not 0 < len(value) <= _MAX_TOKEN:
        return False
    return value.isascii() and value.isprintable() and " " not in value


def read_seconds(value: Any) -> float:
    """Return ``expires_in`` in seconds; infinite if it is missing or invalid: then a 401 ends the token."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return math.inf
    try:
        seconds = float(value)
    except ValueError:
        return math.inf
    return seconds if seconds > 0 and math.isfinite(seconds) else math.inf


def _error_of(answer: Any) -> str:
    """Return the error code of a response if it is a known one, else ``""``."""
    code = answer.get("error") if isinstance(answer, dict) else None
    return code if isinstance(code, str) and code in _ERRORS else ""
