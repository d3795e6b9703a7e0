"""Begin, complete and revoke a login of a person at an authorization server."""

import secrets
from collections.abc import Mapping

from proxy.base.plain_text import plain_text
from proxy.net.public_addresses import may_carry_secrets
from proxy.tools.oauth.clients import Client, LoginAttempt, begin, choose_client, with_authentication
from proxy.tools.oauth.grants import LoggedIn
from proxy.tools.oauth.metadata import Discovery, discover
from proxy.tools.oauth.parameters import granted_scopes, join_scopes
from proxy.tools.oauth.port import OAuthFault, OAuthHttp
from proxy.tools.oauth.stored_tokens import Login, StoredTokens
from proxy.tools.oauth.tokens import ask_for_tokens

_SOON_S = 3600.0
"""The proxy registers a new client if the old one's secret expires within this many seconds."""


async def begin_login(
    http: OAuthHttp,
    connection: LoggedIn,
    *,
    redirect_uri: str,
    now: float,
    before: StoredTokens | None = None,
    scopes: tuple[str, ...] = (),
    parameters: Mapping[str, str] | None = None,
) -> LoginAttempt:
    """Find the authorization server, choose or register a client, and build the attempt.

    ``before`` is the login that exists already; its client is used again. If ``scopes`` has scopes beyond
    the configured ones, the scopes of ``before`` are requested too. Raises
    :class:`~proxy.tools.oauth.port.OAuthFault`.
    """
    discovery = await discover(http, server_url=connection.server_url, issuer=connection.issuer)
    last = before.login if before is not None else None
    if last is not None and (last.issuer, last.resource) != (discovery.server.issuer, discovery.resource):
        last = None
    wanted = _scopes(discovery, connection.scopes, last, scopes)
    client = await choose_client(
        http,
        discovery.server,
        redirect_uri=redirect_uri,
        client_id=connection.client_id,
        client_secret=connection.client_secret,
        document_url=connection.document_url,
        known=_usable(last.client, now) if last is not None else None,
        scopes=wanted,
    )
    page = discovery.server.authorization_endpoint
    if page and not may_carry_secrets(page):
        raise OAuthFault(f"{plain_text(page)}, the page to log in at, is not https")
    return begin(
        discovery.server,
        client,
        redirect_uri=redirect_uri,
        resource=discovery.resource,
        scopes=wanted,
        extra_parameters=parameters,
    )


async def end_login(http: OAuthHttp, attempt: LoginAttempt, code: str, now: float) -> StoredTokens:
    """Exchange a code for tokens; raise :class:`~proxy.tools.oauth.port.OAuthFault` if that fails."""
    server = attempt.server
    try:
        answer = await ask_for_tokens(http, server.token_endpoint, attempt.client, attempt.exchange(code))
    except OAuthFault as fault:
        where = plain_text(server.issuer)
        raise OAuthFault(f"{where} gave no token: {fault}", status=fault.status, code=fault.code) from None
    login = Login(
        id=secrets.token_hex(8),
        at=now,
        issuer=server.issuer,
        token_endpoint=server.token_endpoint,
        client=attempt.client,
        resource=attempt.resource,
        scopes=granted_scopes(answer.scopes, attempt.scopes),
        revocation_endpoint=server.revocation_endpoint,
    )
    return StoredTokens(answer.access_token, answer.refresh_token, now, answer.lasts_s, login)


async def revoke(http: OAuthHttp, tokens: StoredTokens, client: Client) -> bool:
    """Revoke a login at the server (RFC 7009); return ``False`` if the server has no revocation endpoint.

    Raises :class:`~proxy.tools.contract.capabilities.HttpFailure` if the request fails.
    """
    login = tokens.login
    if login is None or not login.revocation_endpoint:
        return False
    token, hint = (
        (tokens.refresh_token, "refresh_token")
        if tokens.refresh_token
        else (tokens.access_token, "access_token")
    )
    fields, authorization = with_authentication(client, {"token": token, "token_type_hint": hint})
    await http.post_form(login.revocation_endpoint, fields, authorization)
    return True


def _scopes(
    discovery: Discovery, configured: tuple[str, ...], last: Login | None, more: tuple[str, ...]
) -> tuple[str, ...]:
    """Return the scopes to request: the configured ones, or else those of the server, and ``more``. With
    ``more`` also the scopes that were granted before."""
    granted = last.scopes if last is not None and more else ()
    scopes = join_scopes(configured or discovery.scopes, granted, more)
    # A server that supports this scope gives refresh tokens only to clients that request it.
    if scopes and "offline_access" in discovery.server.scopes:
        return join_scopes(scopes, ("offline_access",))
    return scopes


def _usable(client: Client, now: float) -> Client | None:
    return client if not client.expires_at or client.expires_at > now + _SOON_S else None
