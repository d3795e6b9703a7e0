"""The login of a person at an OpenID provider.

Nothing is kept between its two requests but a signed cookie, so they may reach different processes. The
cookie holds ``state``; the verifier of PKCE and the nonce are derived from ``state`` with the key of the
sessions. So an answer counts only in the browser that began, a code only with its own verifier, and an ID
token only with its own nonce.

Source of the checks: OpenID Connect Core 1.0, section 3.1.3.7.
"""

import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from msgspec import Struct

from proxy.base.errors import RequestError
from proxy.server.auth.jwt.tokens import JwtTokens, Person, TokenRefused, claim_at
from proxy.tools.oauth.port import FlowSecrets, ForeignRedirect, LoginDenied, OAuthFault, OpenIdFlow
from proxy.ui.cookies import encode, read_signed, signed

LOGIN_S: Final = 600.0
"""Seconds that a person has for a login at the provider."""
START_PATH: Final = "/ui/login"
DONE_PATH: Final = "/ui/login/done"

_CLOCKS_S: Final = 60.0
"""Seconds by which the clocks of this server's hosts may differ."""
_PURPOSE: Final = b"toolrelay ui login"
_LONGEST_NAME: Final = 100
_THEN: Final = re.compile(r"/ui(?:/[A-Za-z0-9_~=&%?:+,*./-]{0,500})?")
_NAMES: Final = ("preferred_username", "email", "name")
"""Claims that name a person to people, the best first (OpenID Connect Core, section 5.1)."""


class LoginRefused(Exception):
    """A login that failed. The message is for the person who logs in and contains no secret; ``reason`` is
    for the log."""

    def __init__(self, status: int, message: str, *, reason: str = "") -> None:
        self.status = status
        self.reason = reason or message
        super().__init__(message)


class LoggedIn(Struct, frozen=True):
    """A person who logged in.

    ``shown`` is a name for people, ``state`` that of the login, and ``then`` the page that they wanted.
    """

    person: Person
    shown: str
    state: str
    then: str


def page_after(wanted: str) -> str:
    """Return the page to show after a login; the first one for what is no page of the web UI."""
    # Browsers read %2e as a dot of the path, too.
    known = _THEN.fullmatch(wanted) and ".." not in unquote(wanted)
    return wanted if known and not wanted.startswith((START_PATH, "/ui/api")) else "/ui/"


class OpenIdLogin:
    """Logs people in at one provider."""

    def __init__(
        self,
        url: str,
        client_id: str,
        flow: OpenIdFlow,
        tokens: JwtTokens,
        key: bytes,
        *,
        now: Callable[[], float] = time.time,
    ) -> None:
        """``url`` is this server's origin as browsers see it. ``tokens`` checks ID tokens, ``key`` signs the
        cookies."""
        self.url = url
        self.provider = urlsplit(tokens.rules.issuer).netloc
        self._client_id = client_id
        self._flow = flow
        self._tokens = tokens
        self._key = key
        self._now = now

    async def aclose(self) -> None:
        """Close the connections to the provider."""
        await self._tokens.aclose()

    async def begin(self, then: str) -> tuple[str, str]:
        """Return the address of the provider's page, and the cookie that the answer needs.

        Raises :class:`LoginRefused` if the provider cannot be used now.
        """
        state = secrets.token_urlsafe(32)
        try:
            address = await self._flow.page(self._secrets(state))
        except OAuthFault as fault:
            raise self._away(str(fault)) from None
        cookie = signed(self._key, _PURPOSE, {"s": state, "t": page_after(then), "b": self._now()})
        return address, cookie

    async def finish(self, query: str, cookies: Sequence[str]) -> LoggedIn:
        """Return who logged in, from the query of the provider's answer and the cookies of the browser.

        Raises :class:`LoginRefused`.
        """
        for content in filter(None, map(self._begun, cookies)):
            own = self._secrets(content["s"])
            try:
                claims = await self._tokens.claims(await self._flow.id_token(query, own))
            except ForeignRedirect:
                continue
            except LoginDenied as fault:
                raise LoginRefused(403, f"The login failed: {fault}.") from None
            except TokenRefused as refused:
                raise LoginRefused(403, f"The ID token {refused}.") from None
            except OAuthFault as fault:
                raise self._away(str(fault)) from None
            except RequestError as error:
                raise self._away(error.message) from None
            return LoggedIn(self._person(claims, own), self._shown(claims), own.state, content["t"])
        raise LoginRefused(
            400,
            "This login did not begin in this browser, took longer than ten minutes, or was replaced by a "
            "newer one. Begin again.",
        )

    async def end_address(self) -> str:
        """Return the address at which a browser logs out of the provider too; empty if it has none."""
        try:
            return await self._flow.logout_page(f"{self.url}/ui/")
        except OAuthFault:
            return ""

    def _begun(self, cookie: str) -> dict[str, Any] | None:
        match read_signed(self._key, _PURPOSE, cookie):
            case {"s": str(), "t": str(), "b": float(began)} as content:
                return content if -_CLOCKS_S <= self._now() - began < LOGIN_S else None
        return None

    def _person(self, claims: Mapping[str, Any], own: FlowSecrets) -> Person:
        """Return whom the ID token of this login names."""
        nonce = claims.get("nonce")
        if not isinstance(nonce, str) or not hmac.compare_digest(nonce.encode(), own.nonce.encode()):
            raise LoginRefused(403, "The ID token is not the answer to this login (nonce).")
        audiences, party = claims.get("aud"), claims.get("azp")
        is_shared = isinstance(audiences, list) and len(audiences) > 1
        if (party is not None or is_shared) and party != self._client_id:
            raise LoginRefused(403, "The ID token was made for another client (azp).")
        try:
            return self._tokens.person(claims)
        except TokenRefused as refused:
            raise LoginRefused(403, f"The ID token {refused}.") from None
        except RequestError as error:
            raise LoginRefused(403, self._without_role(claims), reason=error.message) from None

    def _without_role(self, claims: Mapping[str, Any]) -> str:
        name = self._tokens.rules.roles
        if claim_at(claims, name) is None:
            return (
                f"You are logged in at {self.provider}, but the ID token has no claim {name}. Whoever runs "
                "the provider must add it to the ID token of this client."
            )
        return (
            f"You are logged in at {self.provider}, but the claim {name} of the ID token names no group or "
            "role that may use this page. Ask whoever runs this server for one of those in auth.jwt.roles."
        )

    def _shown(self, claims: Mapping[str, Any]) -> str:
        """Return a name for people; the user's own if no claim has one."""
        for name in (*_NAMES, self._tokens.rules.user):
            value = claim_at(claims, name)
            if isinstance(value, str) and value.isprintable() and 0 < len(value) <= _LONGEST_NAME:
                return value
        return "user"

    def _away(self, reason: str) -> LoginRefused:
        """Return the fault of a provider that cannot be used; ``reason`` is for the log alone."""
        return LoginRefused(
            503,
            f"{self.provider} cannot log anybody in here now. Try again in a moment, or sign in with a key. "
            "The log of this server says what is wrong.",
            reason=reason,
        )

    def _secrets(self, state: str) -> FlowSecrets:
        return FlowSecrets(state, self._derived(b"nonce", state), self._derived(b"verifier", state))

    def _derived(self, purpose: bytes, state: str) -> str:
        text = b"\0".join((_PURPOSE, purpose, state.encode()))
        return encode(hashlib.blake2b(text, key=self._key, digest_size=32).digest())
