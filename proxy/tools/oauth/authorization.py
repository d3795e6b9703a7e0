"""One attempt to log in: the URL for the browser, and the check of the redirect that comes back.

Sources: OAuth 2.1 (the code flow), RFC 7636 (PKCE), RFC 8707 (``resource``), RFC 9207 (``iss``).
"""

import base64
import hashlib
import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from proxy.base.plain_text import plain_text
from proxy.tools.oauth.clients import Client
from proxy.tools.oauth.metadata import AuthorizationServer
from proxy.tools.oauth.port import OAuthFault

_MAX_REDIRECT: Final = 16384


class ForeignRedirect(Exception):
    """A redirect that does not belong to this attempt: anyone may have sent it."""


@dataclass(frozen=True, slots=True)
class LoginAttempt:
    """One attempt to log in. ``url`` is the page for the browser; ``state`` and ``verifier`` are secrets."""

    server: AuthorizationServer
    client: Client
    redirect_uri: str
    resource: str
    scopes: tuple[str, ...]
    state: str = field(repr=False)
    verifier: str = field(repr=False)
    url: str = field(repr=False)

    def code_of(self, redirected: str) -> str:
        """Return the authorization code of a redirect; ``redirected`` is its whole URL or only the query.

        Raises :class:`ForeignRedirect` if the URL does not belong to this attempt. Raises
        :class:`~proxy.tools.oauth.port.OAuthFault` if the server refused, or if another server answered
        (RFC 9207: a mix-up of two servers).
        """
        query = _query_of(redirected)
        if not hmac.compare_digest(query.get("state", "").encode(), self.state.encode()):
            raise ForeignRedirect
        issuer = query.get("iss")
        if issuer is None and self.server.sends_iss:
            raise OAuthFault("the answer does not name its issuer, though the server promises that it does")
        if issuer is not None and issuer != self.server.issuer:
            raise OAuthFault(
                f"the answer is from the issuer {plain_text(issuer)}, not from "
                f"{plain_text(self.server.issuer)}: this may be a mix-up attack"
            )
        if "error" in query:
            about = query.get("error_description", "")
            raise OAuthFault(
                f"{plain_text(self.server.issuer)} refused: {plain_text(query['error'], 80)}"
                f"{f' ({plain_text(about)})' if about else ''}"
            )
        if not query.get("code"):
            raise OAuthFault("the answer has no code")
        return query["code"]

    def exchange(self, code: str) -> dict[str, str]:
        """Return the fields of the token request that exchanges a code for tokens."""
        return {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self.redirect_uri,
            "code_verifier": self.verifier,
            **({"resource": self.resource} if self.resource else {}),
        }


def begin(
    server: AuthorizationServer,
    client: Client,
    *,
    redirect_uri: str,
    resource: str,
    scopes: tuple[str, ...],
    extra_parameters: Mapping[str, str] | None = None,
) -> LoginAttempt:
    """Build an attempt with new secrets; ``extra_parameters`` are further parameters of the request.

    Raises :class:`~proxy.tools.oauth.port.OAuthFault` for a server without PKCE with S256, or without a login
    page.
    """
    where = plain_text(server.issuer)
    if not server.authorization_endpoint:
        raise OAuthFault(f"{where} has no page to log in at: its metadata lacks authorization_endpoint")
    if not server.has_pkce:
        raise OAuthFault(f"{where} does not announce PKCE with S256, which a login needs")
    state, verifier = secrets.token_urlsafe(32), secrets.token_urlsafe(64)
    digest = hashlib.sha256(verifier.encode()).digest()
    asked = {
        **(extra_parameters or {}),
        "response_type": "code",
        "client_id": client.id,
        "redirect_uri": redirect_uri,
        "state": state,
        "code_challenge": base64.urlsafe_b64encode(digest).decode().rstrip("="),
        "code_challenge_method": "S256",
        **({"scope": " ".join(scopes)} if scopes else {}),
        **({"resource": resource} if resource else {}),
    }
    parts = urlsplit(server.authorization_endpoint)
    own = [(name, value) for name, value in parse_qsl(parts.query) if name not in asked]
    url = urlunsplit(parts._replace(query=urlencode([*own, *asked.items()]), fragment=""))
    return LoginAttempt(server, client, redirect_uri, resource, scopes, state, verifier, url)


def _query_of(redirected: str) -> dict[str, str]:
    """Return the query parameters of a URL; raise :class:`ForeignRedirect` if it names one of them twice."""
    text = redirected.strip()
    if len(text) > _MAX_REDIRECT:
        raise ForeignRedirect
    query = (text.partition("?")[2] if "?" in text else text).partition("#")[0]
    try:
        pairs = parse_qsl(query, keep_blank_values=True, max_num_fields=50)
    except ValueError:
        raise ForeignRedirect from None
    values = dict(pairs)
    if len(values) != len(pairs):
        raise ForeignRedirect
    return values
