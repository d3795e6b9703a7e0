"""The code flow of OpenID Connect with PKCE, for one client at one provider.

Sources: OpenID Connect Core 1.0, section 3.1.2; Discovery 1.0; RP-Initiated Logout 1.0; RFC 7636 (PKCE);
RFC 9207 (``iss``); RFC 9700, section 2.1.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Final
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import structlog

from proxy.net.public_addresses import may_carry_secrets
from proxy.tools.contract.capabilities import HttpFailure
from proxy.tools.oauth.clients import LoginAttempt, attempt_with, configured_client
from proxy.tools.oauth.metadata import AuthorizationServer, read_server
from proxy.tools.oauth.port import FlowSecrets, LoginDenied, OAuthFault, OAuthHttp
from proxy.tools.oauth.tokens import ask_for_tokens

_FRESH_S: Final = 3600.0
"""Seconds for which the provider's metadata is used before it is read again."""
_AGAIN_S: Final = 5.0
"""Seconds after which a provider that did not answer is asked again."""
_AT_ONCE: Final = 8
"""The most exchanges of a code at one time, in each process: strangers can cause them."""


class CodeFlow:
    """:class:`~proxy.tools.oauth.port.OpenIdFlow` over HTTP. ``client_secret`` is empty for a public
    client."""

    def __init__(
        self,
        http: OAuthHttp,
        issuer: str,
        client: tuple[str, str],
        redirect_uri: str,
        scopes: tuple[str, ...],
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """``client`` is the id and the secret, which is empty for a public client."""
        self._http = http
        self._issuer = issuer
        self._client = client
        self._redirect_uri = redirect_uri
        self._scopes = scopes
        self._monotonic = monotonic
        self._known: AuthorizationServer | None = None
        self._read_at = self._tried_at = -float("inf")
        self._reading = asyncio.Lock()
        self._exchanges = asyncio.Semaphore(_AT_ONCE)
        self._log: structlog.typing.FilteringBoundLogger = structlog.get_logger("proxy.ui")

    async def page(self, secrets: FlowSecrets) -> str:
        return self._attempt(await self._server(), secrets).url

    async def id_token(self, query: str, secrets: FlowSecrets) -> str:
        attempt = self._attempt(await self._server(), secrets)
        code = attempt.code_of(query)
        if self._exchanges.locked():
            raise LoginDenied("too many people log in at this moment; try again")
        async with self._exchanges:
            try:
                answer = await ask_for_tokens(
                    self._http, attempt.server.token_endpoint, attempt.client, attempt.exchange(code)
                )
            except OAuthFault as fault:
                if fault.code == "invalid_grant":
                    raise LoginDenied("the login has expired or was used before") from None
                raise OAuthFault(f"{attempt.server.token_endpoint} gave no token: {fault}") from None
        if not answer.id_token:
            raise OAuthFault("its answer has no ID token; is openid among the scopes of the client?")
        return answer.id_token

    async def logout_page(self, return_to: str) -> str:
        """Return the address; without an ID token as a hint the provider asks the person first.

        Source: OpenID Connect RP-Initiated Logout 1.0, section 2.
        """
        address = (await self._server()).end_session_endpoint
        if not address or not may_carry_secrets(address):
            return ""
        parts = urlsplit(address)
        asked = {"client_id": self._client[0], "post_logout_redirect_uri": return_to}
        return urlunsplit(parts._replace(query=urlencode([*parse_qsl(parts.query), *asked.items()])))

    def _attempt(self, server: AuthorizationServer, secrets: FlowSecrets) -> LoginAttempt:
        if not server.authorization_endpoint or not may_carry_secrets(server.authorization_endpoint):
            raise OAuthFault("its metadata names no https page to log in at")
        return attempt_with(
            server,
            configured_client(server, *self._client),
            redirect_uri=self._redirect_uri,
            scopes=self._scopes,
            state=secrets.state,
            verifier=secrets.verifier,
            extra_parameters={"nonce": secrets.nonce},
        )

    async def _server(self) -> AuthorizationServer:
        """Return the provider's metadata, at most an hour old, or older while it does not answer."""
        async with self._reading:
            fresh = self._monotonic() - self._read_at < _FRESH_S
            if not fresh and self._monotonic() - self._tried_at >= _AGAIN_S:
                self._tried_at = self._monotonic()
                try:
                    self._known = await self._discovered()
                    self._read_at = self._monotonic()
                except (HttpFailure, OAuthFault) as error:
                    self._log.warning("login_provider_unread", issuer=self._issuer, reason=str(error))
            if self._known is None:
                raise OAuthFault("its metadata cannot be read")
            return self._known

    async def _discovered(self) -> AuthorizationServer:
        """Read the metadata: OpenID Connect Discovery 1.0, section 4."""
        place = f"{self._issuer.rstrip('/')}/.well-known/openid-configuration"
        return read_server(await self._http.get_json(place), place, self._issuer)
