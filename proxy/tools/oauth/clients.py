"""The OAuth client as which the proxy acts, and one attempt to log in with it.

The client is registered beforehand by the operator, identified by the URL of a document, or registered by the
proxy itself. An attempt makes the URL for the browser, and checks the redirect that comes back.

Sources: RFC 7591 (dynamic client registration), RFC 6749, section 2.3 (client authentication), the draft on
client id metadata documents; OAuth 2.1 (the code flow), RFC 7636 (PKCE), RFC 8707 (``resource``), RFC 9207
(``iss``).
"""

import base64
import hashlib
import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeGuard
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

from proxy.base.plain_text import plain_text
from proxy.tools.contract.capabilities import HttpFailure
from proxy.tools.oauth.metadata import AuthorizationServer
from proxy.tools.oauth.port import ForeignRedirect, LoginDenied, OAuthFault, OAuthHttp

ClientKind = Literal["configured", "document", "registered"]

_MAX_ID: Final = 2048
_METHODS: Final = ("none", "client_secret_basic", "client_secret_post")


@dataclass(frozen=True, slots=True)
class Client:
    """An OAuth client.

    ``method`` is its authentication method at the token endpoint: ``none``, ``client_secret_basic`` or
    ``client_secret_post``. ``redirect_uri`` is the one that it was registered with. ``expires_at`` is the
    expiry of its secret in seconds since the epoch, 0 for never.
    """

    id: str
    kind: ClientKind
    secret: str = field(default="", repr=False)
    method: str = "none"
    redirect_uri: str = ""
    expires_at: float = 0.0


def with_authentication(client: Client, fields: Mapping[str, str]) -> tuple[dict[str, str], str | None]:
    """Add the client's authentication to a token request: return its fields and its ``Authorization`` value.

    The value is ``None`` if the client sends no such header.
    """
    if client.method == "client_secret_basic":
        # Each part is encoded before they are joined: RFC 6749, section 2.3.1.
        pair = f"{quote(client.id, safe='')}:{quote(client.secret, safe='')}"
        return dict(fields), f"Basic {base64.b64encode(pair.encode()).decode()}"
    made = {**fields, "client_id": client.id}
    if client.method == "client_secret_post":
        made["client_secret"] = client.secret
    return made, None


def configured_client(server: AuthorizationServer, client_id: str, secret: str) -> Client:
    """Return the configured client; raise :class:`~proxy.tools.oauth.port.OAuthFault` if the server accepts
    the secret by no method that the proxy knows."""
    if not secret:
        return Client(client_id, "configured")
    # The default is Basic: RFC 8414, section 2.
    taken = server.auth_methods if server.auth_methods is not None else ("client_secret_basic",)
    for method in ("client_secret_basic", "client_secret_post"):
        if method in taken:
            return Client(client_id, "configured", secret, method)
    shown = ", ".join(plain_text(scope) for scope in taken[:5]) or "none"
    raise OAuthFault(f"{plain_text(server.issuer)} accepts no client secret, only: {shown}")


async def choose_client(
    http: OAuthHttp,
    server: AuthorizationServer,
    *,
    redirect_uri: str,
    client_id: str = "",
    client_secret: str = "",
    document_url: str = "",
    known: Client | None = None,
    scopes: tuple[str, ...] = (),
) -> Client:
    """Return the client for a login, chosen in the order of the MCP specification.

    ``known`` is a client from an earlier login at this server. If the proxy had registered it with the same
    redirect URI, it is used again. Raises :class:`~proxy.tools.oauth.port.OAuthFault`.
    """
    if client_id:
        return configured_client(server, client_id, client_secret)
    if document_url and server.accepts_client_documents:
        return Client(document_url, "document")
    if known is not None and known.kind == "registered" and known.redirect_uri == redirect_uri:
        return known
    if server.registration_endpoint:
        return await _register(http, server, redirect_uri, scopes)
    raise OAuthFault(
        f"{plain_text(server.issuer)} registers no clients by itself: register one there with the redirect "
        f"address {redirect_uri}, and write its client_id"
    )


async def _register(
    http: OAuthHttp, server: AuthorizationServer, redirect_uri: str, scopes: tuple[str, ...]
) -> Client:
    taken = server.auth_methods
    method = "none" if taken is None else next((method for method in _METHODS if method in taken), "none")
    asked = {
        "client_name": "toolrelay",
        "redirect_uris": [redirect_uri],
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "token_endpoint_auth_method": method,
        # A native client has no https address of its own: OpenID Connect Registration 1.0, section 2.
        "application_type": "web" if redirect_uri.startswith("https://") else "native",
        **({"scope": " ".join(scopes)} if scopes else {}),
    }
    where = plain_text(server.issuer)
    try:
        answer = await http.post_json(server.registration_endpoint, asked)
    except HttpFailure as failure:
        raise OAuthFault(f"{where} refused to register a client: {failure}", status=failure.status) from None
    client = _registered(answer, redirect_uri, method)
    if client is None:
        raise OAuthFault(f"{where} registered a client that cannot be used here")
    return client


def _registered(answer: Any, redirect_uri: str, asked: str) -> Client | None:
    """Return the client in a registration response; ``None`` if it cannot be used."""
    if not isinstance(answer, dict):
        return None
    client_id, secret = answer.get("client_id"), answer.get("client_secret") or ""
    if not _is_printable(client_id) or not isinstance(secret, str) or (secret and not _is_printable(secret)):
        return None
    # Servers may replace the requested method by another one: RFC 7591, section 3.2.1.
    method = answer.get("token_endpoint_auth_method") or ("client_secret_basic" if secret else asked)
    if method not in _METHODS or (method != "none" and not secret):
        return None
    redirects = answer.get("redirect_uris")
    if isinstance(redirects, list) and redirects and redirect_uri not in redirects:
        return None
    expires_at = answer.get("client_secret_expires_at") or 0
    if isinstance(expires_at, bool) or not isinstance(expires_at, int | float):
        return None
    return Client(
        client_id, "registered", secret if method != "none" else "", method, redirect_uri, float(expires_at)
    )


def _is_printable(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and 0 < len(value) <= _MAX_ID and value.isascii() and value.isprintable()


_MAX_REDIRECT: Final = 16384


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

        Raises :class:`~proxy.tools.oauth.port.ForeignRedirect` if the URL does not belong to this attempt.
        Raises :class:`~proxy.tools.oauth.port.LoginDenied` if the server refused, or if another server
        answered (RFC 9207: a mix-up of two servers).
        """
        query = _query_of(redirected)
        if not hmac.compare_digest(query.get("state", "").encode(), self.state.encode()):
            raise ForeignRedirect
        issuer = query.get("iss")
        if issuer is None and self.server.sends_iss:
            raise LoginDenied("the answer does not name its issuer, though the server promises that it does")
        if issuer is not None and issuer != self.server.issuer:
            raise LoginDenied(
                f"the answer is from the issuer {plain_text(issuer)}, not from "
                f"{plain_text(self.server.issuer)}: this may be a mix-up attack"
            )
        if "error" in query:
            about = query.get("error_description", "")
            raise LoginDenied(
                f"{plain_text(self.server.issuer)} refused: {plain_text(query['error'], 80)}"
                f"{f' ({plain_text(about)})' if about else ''}"
            )
        if not query.get("code"):
            raise LoginDenied("the answer has no code")
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
    return attempt_with(
        server,
        client,
        redirect_uri=redirect_uri,
        resource=resource,
        scopes=scopes,
        state=secrets.token_urlsafe(32),
        verifier=secrets.token_urlsafe(64),
        extra_parameters=extra_parameters,
    )


def attempt_with(
    server: AuthorizationServer,
    client: Client,
    *,
    redirect_uri: str,
    scopes: tuple[str, ...],
    state: str,
    verifier: str,
    resource: str = "",
    extra_parameters: Mapping[str, str] | None = None,
) -> LoginAttempt:
    """Build an attempt with secrets of the caller; the server must have a login page."""
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
