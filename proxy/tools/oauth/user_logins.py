"""Logins of end users: each person's own account at a connection that the operator declared ``per_user``.

A call of a person who has not logged in fails with a link. The link is bound to that person and to the
connection, and ends after ten minutes or with the login that it led to. It leads a browser to a page that
says whom it binds, and only from there to the authorization server. What comes back must be from the same
browser (a cookie), for the same attempt (``state``) and from the same server (``iss``), and is taken once.

Sources: OAuth 2.1 and RFC 7636 (PKCE), by :mod:`.login`; RFC 9207 (``iss``); RFC 9700, sections 4.4 (mix-up),
4.7 (CSRF) and 4.5 (codes of others).
"""

import hashlib
import hmac
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

import msgspec
import orjson
from msgspec import Struct
from msgspec.structs import replace as replace_struct

from proxy.base.sealed_text import TextSeal
from proxy.records.rows import TokenVault
from proxy.tools.contract.provider import Person
from proxy.tools.oauth.clients import LoginAttempt
from proxy.tools.oauth.grants import LoggedIn, login_place
from proxy.tools.oauth.login import begin_login, end_login
from proxy.tools.oauth.port import ForeignRedirect, OAuthFault, OAuthHttp
from proxy.tools.oauth.stored_tokens import Login, StoredTokens, read_stored_tokens

LINK_LASTS_S: Final = 600.0
"""Seconds for which a link works, and for which an attempt waits for its answer."""

_PAUSE_S: Final = 2.0
"""Seconds between two attempts of one person: each of them asks the authorization server."""

_SHOWN: Final = 80
_NO_TOKEN: Final = "-"
_URL_SAFE: Final = str.maketrans("+/", "-_")
_PLAIN: Final = str.maketrans("-_", "+/")


class UserConnection(Struct, frozen=True):
    """A connection to which each person logs in; ``parameters`` are further ones of the login's request."""

    login: LoggedIn
    parameters: Mapping[str, str]

    @property
    def where(self) -> str:
        """The authorization server, for people."""
        return self.login.issuer or self.login.server_url


class NotThisLogin(Exception):
    """An answer that does not belong to this person's attempt in this browser: anyone may have sent it."""


class Ticket(Struct, frozen=True):
    """What a link says: the person, and the time at which it was made, in seconds since the epoch."""

    connection: str
    person: Person
    made_at: float


class _Attempt(Struct, frozen=True):
    """An attempt that waits for its answer from the browser whose secret has this digest."""

    attempt: LoginAttempt
    browser: str
    began_at: float


class UserLogins:
    """The links and logins of end users, shared by all processes through the vault."""

    def __init__(
        self,
        connections: Mapping[str, UserConnection],
        http: Callable[[LoggedIn], OAuthHttp],
        vault: TokenVault,
        public_url: str,
        now: Callable[[], float],
    ) -> None:
        """``public_url`` is the address by which people reach the proxy, without a ``/`` at the end. ``now``
        is the clock of the vault."""
        self._connections = connections
        self._http = http
        self._vault = vault
        self._seal: TextSeal | None = None
        self._public_url = public_url
        self._now = now

    def open_with(self, keys: Sequence[bytes]) -> None:
        """Seal links with the first of these keys, which all processes share; read those of all of them."""
        self._seal = TextSeal(keys, b"login links")

    @property
    def redirect_uri(self) -> str:
        """The address to which authorization servers send browsers back."""
        return f"{self._public_url}/connect/callback"

    def link(self, connection: str, person: Person) -> str:
        """Return a new link at which a person logs in. Raises ``RuntimeError`` before :meth:`open_with`."""
        return f"{self._public_url}/connect/{connection}?t={self._ticket(connection, person)}"

    def _ticket(self, connection: str, person: Person) -> str:
        if self._seal is None:
            raise RuntimeError("nothing seals links")
        text = orjson.dumps([person.name, person.shown[:_SHOWN], round(self._now(), 3)])
        return self._seal.close(text, connection.encode()).translate(_URL_SAFE).rstrip("=")

    def read(self, connection: str, text: str) -> Ticket | None:
        """Return what a link says; ``None`` for one that was not made here, or has expired."""
        if self._seal is None or connection not in self._connections or len(text) > 1000:
            return None
        padded = text.translate(_PLAIN) + "=" * (-len(text) % 4)
        opened = self._seal.open(padded, connection.encode())
        if opened is None:
            return None
        name, shown, made_at = orjson.loads(opened)
        if not 0 <= self._now() - made_at + 1 <= LINK_LASTS_S:
            return None
        return Ticket(connection, Person(name, shown), made_at)

    def where(self, connection: str) -> str:
        """Return the authorization server of a connection, for people."""
        return self._connections[connection].where

    async def is_used(self, ticket: Ticket) -> bool:
        """Return whether its person has logged in since a link was made, so that it does not work again.

        Raises :class:`~proxy.base.errors.StoreError`.
        """
        place = login_place(ticket.connection, ticket.person.name)
        tokens = read_stored_tokens(await self._vault.load(place))
        return tokens is not None and tokens.login is not None and tokens.login.at >= ticket.made_at

    async def begin(self, ticket: Ticket, browser: str) -> str:
        """Begin an attempt for a browser that has the secret ``browser``; return the page to log in at.

        An earlier attempt of the person ends. Raises :class:`~proxy.tools.oauth.port.OAuthFault` and
        :class:`~proxy.base.errors.StoreError`.
        """
        place = _attempt_place(ticket)
        waiting = _read_attempt(await self._vault.load(place))
        if waiting is not None and 0 <= self._now() - waiting.began_at < _PAUSE_S:
            raise OAuthFault("an attempt has just begun; wait some seconds, and try again")
        attempt = await self._attempt(ticket.connection)
        kept = _Attempt(_less(attempt), _digest(browser), self._now())
        await self._vault.save(place, msgspec.json.encode(kept))
        return attempt.url

    async def _attempt(self, name: str) -> LoginAttempt:
        """Return an attempt of the proxy's one client of a connection, which is registered once."""
        own, place = self._connections[name], _client_place(name)
        async with self._vault.exclusive(place):
            before = read_stored_tokens(await self._vault.load(place))
            attempt = await begin_login(
                self._http(own.login),
                own.login,
                redirect_uri=self.redirect_uri,
                now=self._now(),
                before=before,
                parameters=own.parameters,
            )
            if attempt.client.kind == "registered" and (
                before is None or before.login is None or before.login.client != attempt.client
            ):
                await self._vault.save(place, _client_of(attempt, self._now()).to_json())
        return attempt

    async def finish(self, ticket: Ticket, browser: str, query: str) -> None:
        """Take the answer of the authorization server, and keep the person's tokens.

        ``query`` is that of the browser's request. Raises :class:`NotThisLogin` for an answer that is not of
        this attempt and browser, which changes nothing; :class:`~proxy.tools.oauth.port.OAuthFault` if
        the server refused or another one answered, and :class:`~proxy.base.errors.StoreError`.
        """
        place = _attempt_place(ticket)
        async with self._vault.exclusive(place):
            kept = _read_attempt(await self._vault.load(place))
            if kept is None or not hmac.compare_digest(kept.browser, _digest(browser)):
                raise NotThisLogin
            if not 0 <= self._now() - kept.began_at + 1 <= LINK_LASTS_S:
                raise NotThisLogin
            try:
                code = kept.attempt.code_of(query)
            except ForeignRedirect:
                raise NotThisLogin from None
            except OAuthFault:
                await self._vault.forget(place)
                raise
            # Before the exchange: a code that was seen once is not taken again, whatever happens.
            await self._vault.forget(place)
        own = self._connections[ticket.connection].login
        attempt = _with_secret(kept.attempt, own)
        tokens = await end_login(self._http(own), attempt, code, self._now())
        kept_at = login_place(ticket.connection, ticket.person.name)
        async with self._vault.exclusive(kept_at):
            await self._vault.save(kept_at, tokens.to_json())


def new_browser() -> str:
    """Return a new secret that identifies a browser."""
    return secrets.token_urlsafe(24)


def _less(attempt: LoginAttempt) -> LoginAttempt:
    """Return an attempt without what its end does not need: lists of its server, a configured secret."""
    server = replace_struct(attempt.server, scopes=(), auth_methods=None, grants=None)
    client = attempt.client
    if client.kind == "configured":
        client = replace(client, secret="")
    return replace(attempt, server=server, client=client, url="")


def _with_secret(attempt: LoginAttempt, own: LoggedIn) -> LoginAttempt:
    client = attempt.client
    if client.kind != "configured":
        return attempt
    return replace(attempt, client=replace(client, secret=own.client_secret))


def _client_of(attempt: LoginAttempt, now: float) -> StoredTokens:
    """Return the registered client in the form of a login, which a later attempt begins with."""
    server = attempt.server
    login = Login("client", now, server.issuer, server.token_endpoint, attempt.client, attempt.resource)
    return StoredTokens(_NO_TOKEN, "", now, 1.0, login)


def _read_attempt(written: bytes | None) -> _Attempt | None:
    try:
        return msgspec.json.decode(written, type=_Attempt) if written else None
    except (msgspec.DecodeError, ValueError):
        return None


def _attempt_place(ticket: Ticket) -> str:
    return _digest(f"attempt\0{ticket.connection}\0{ticket.person.name}")


def _client_place(name: str) -> str:
    return _digest(f"client\0{name}")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
