"""The tokens of a connection as stored in a vault, which encrypts them."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeGuard

import orjson

from proxy.tools.oauth.clients import Client
from proxy.tools.oauth.metadata import covers, is_same_issuer
from proxy.tools.oauth.parameters import granted_scopes
from proxy.tools.oauth.tokens import TokenAnswer, is_token, read_seconds


@dataclass(frozen=True, slots=True)
class Login:
    """A person's login: its target, and all that a refresh needs.

    ``id`` is unique to each login; ``at`` is its time in seconds since the epoch. ``resource`` is the
    audience of its tokens, empty if none was named. ``scopes`` are the granted scopes.
    """

    id: str
    at: float
    issuer: str
    token_endpoint: str
    client: Client
    resource: str = ""
    scopes: tuple[str, ...] = ()
    revocation_endpoint: str = ""

    def is_for(self, *, resource: str, issuer: str, client_id: str) -> bool:
        """Return whether the login fits the configuration; an empty issuer or client id fits any.

        ``resource`` is the URL of the server as the operator wrote it, empty for none.
        """
        if bool(resource) != bool(self.resource) or (resource and not covers(self.resource, resource)):
            return False
        same_issuer = not issuer or is_same_issuer(issuer, self.issuer)
        return same_issuer and (not client_id or client_id == self.client.id)


@dataclass(frozen=True, slots=True)
class StoredTokens:
    """Stored tokens. ``made_at`` is in seconds since the epoch; ``login`` is ``None`` without a login."""

    access_token: str = field(repr=False)
    refresh_token: str = field(repr=False)
    made_at: float
    lasts_s: float
    login: Login | None = None

    def to_json(self) -> bytes:
        """Return the JSON, tokens included; for the vault only."""
        lasts_s = self.lasts_s if math.isfinite(self.lasts_s) else None
        return orjson.dumps({**asdict(self), "lasts_s": lasts_s})


def updated_tokens(
    answer: TokenAnswer, now: float, before: StoredTokens | None, refresh_token: str = ""
) -> StoredTokens:
    """Return what to store after a token response. The old refresh token (RFC 6749, section 6) and the old
    scopes of a login stay unless the response replaces them."""
    login = before.login if before is not None else None
    if login is not None:
        login = replace(login, scopes=granted_scopes(answer.scopes, login.scopes))
    return StoredTokens(
        answer.access_token, answer.refresh_token or refresh_token, now, answer.lasts_s, login
    )


def read_stored_tokens(written: bytes | None) -> StoredTokens | None:
    """Read what :meth:`StoredTokens.to_json` wrote; return ``None`` for anything else."""
    try:
        content = orjson.loads(written or b"null")
    except orjson.JSONDecodeError:
        return None
    if not isinstance(content, dict):
        return None
    access, refresh, made_at = map(content.get, ("access_token", "refresh_token", "made_at"))
    if not is_token(access) or not (refresh == "" or is_token(refresh)) or not _is_number(made_at):
        return None
    try:
        login = None if content.get("login") is None else _login(content["login"])
    except (KeyError, TypeError, ValueError):
        return None
    return StoredTokens(access, refresh, made_at, read_seconds(content.get("lasts_s")), login)


def _login(content: Mapping[str, Any]) -> Login:
    client = Client(**content["client"])
    return Login(**{**content, "client": client, "scopes": tuple(content["scopes"])})


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)
