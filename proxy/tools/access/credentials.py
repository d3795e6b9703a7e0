"""Credentials by name: static tokens, and OAuth 2 access tokens kept fresh (rule T6).

A tool names a connection and gets an HTTP client that adds the ``Authorization`` header by itself.
It never sees a token, its own or another's.  Tokens that were refreshed, and refresh tokens that a
provider rotated, are kept in a vault, where there is one: all processes share them, one of them
refreshes, and a restart goes on with the newest.  Without a vault they are in memory only, and a
restart uses the configured refresh token again.

The refresh is that of RFC 6749, section 6; the errors are those of its section 5.2.
"""

import asyncio
import hashlib
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
import structlog
from yarl import URL

from proxy.errors import StoreError, ToolFailure
from proxy.records import TokenVault
from proxy.tools.access.egress import EgressPool
from proxy.tools.access.single_flight import SingleFlight, WorkCancelled
from proxy.tools.contract.capabilities import HttpClient, HttpFailure, Unconnected, unconnected

__all__ = ["Connection", "CredentialBroker", "OAuthToken", "StaticToken", "TokenExchange", "host_entry"]

_EARLY_S = 60.0
"""Seconds before its end that a token is replaced; half its life where that is shorter."""
_PAUSE_S = 5.0
"""Seconds after a failed refresh in which no other is tried."""
_MAX_TOKEN = 16384

TokenExchange = Callable[[str, Mapping[str, str]], Awaitable[Any]]
"""Posts a form to a token endpoint: ``(url, fields)`` to the JSON of its answer, or HttpFailure."""


@dataclass(frozen=True, slots=True)
class StaticToken:
    """A token that stays what it is."""

    token: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class OAuthToken:
    """What it takes to get access tokens from ``token_url``."""

    token_url: str
    client_id: str = field(repr=False)
    refresh_token: str = field(repr=False)
    client_secret: str = field(default="", repr=False)


Connection = StaticToken | OAuthToken


class CredentialBroker:
    """All connections of the process.  Belongs to one event loop.

    Args:
        connections: the credentials of each connection by its name.
        pool: whose HTTP the clients and token endpoints are called with.
        exchange: posts to token endpoints; by ``pool`` unless given.
        clock: monotonic seconds.
        vault: where refreshed tokens are shared with other processes and outlive this one.
        now: seconds since the epoch, which all processes agree on.
    """

    def __init__(
        self,
        connections: Mapping[str, Connection],
        pool: EgressPool,
        *,
        exchange: TokenExchange | None = None,
        clock: Callable[[], float] = time.monotonic,
        vault: TokenVault | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._pool = pool
        self._authorizers: dict[str, _Static | _Refreshed] = {
            name: (
                _Static(connection)
                if isinstance(connection, StaticToken)
                else _Refreshed(name, connection, exchange or self._exchange, clock, vault, now)
            )
            for name, connection in connections.items()
        }

    @property
    def names(self) -> frozenset[str]:
        """The connections that there are."""
        return frozenset(self._authorizers)

    def client(self, name: str, hosts: Sequence[str]) -> HttpClient:
        """A client for the named connection that reaches ``hosts`` only.

        Implements :data:`~proxy.tools.contract.capabilities.ConnectedHttpSource`.  For a connection that does
        not exist it is one that reaches nothing and says so.
        """
        authorizer = self._authorizers.get(name)
        return self._pool.client(hosts, authorizer) if authorizer is not None else Unconnected(name)

    async def prepare(self, connection: str) -> None:
        """As :class:`~proxy.tools.contract.capabilities.Credentials` says: one refresh for all who wait."""
        authorizer = self._authorizers.get(connection)
        if authorizer is None:
            raise unconnected(connection)
        await authorizer.authorization()

    async def _exchange(self, url: str, fields: Mapping[str, str]) -> Any:
        return await self._pool.client((host_entry(url),)).post_form(url, fields)


class _Static:
    """The header of a static token."""

    def __init__(self, connection: StaticToken) -> None:
        self._connection = connection

    async def authorization(self) -> str:
        """The header's value."""
        return f"Bearer {self._connection.token}"

    async def renew(self, refused: str) -> str | None:
        """There is no other."""
        return None


class _Refreshed:
    """The header of an OAuth 2 access token, fetched once for all who wait for it."""

    def __init__(
        self,
        name: str,
        connection: OAuthToken,
        exchange: TokenExchange,
        clock: Callable[[], float],
        vault: TokenVault | None,
        now: Callable[[], float],
    ) -> None:
        self._name = name
        self._connection = connection
        self._exchange = exchange
        self._clock = clock
        self._vault = vault
        self._now = now
        self._place = _place(name, connection)
        self._refresh_token = connection.refresh_token
        self._refused = ""
        self._unsaved = False
        self._under_way: asyncio.Task[str] | None = None
        self._header: str | None = None
        self._good_until = self._ends_at = 0.0
        self._refreshed_at = -math.inf
        self._paused_until = -math.inf
        self._flights: SingleFlight[str] = SingleFlight()
        self._logger: structlog.typing.FilteringBoundLogger = structlog.get_logger("proxy.tools")

    async def authorization(self) -> str:
        """The header's value, refreshed before its time is over."""
        if self._header is not None and self._clock() < self._good_until:
            return self._header
        try:
            return await self._refreshed()
        except ToolFailure:
            if self._header is not None and self._clock() < self._ends_at:
                return self._header  # Not fresh any more, and still good.
            raise

    async def renew(self, refused: str) -> str | None:
        """Another value after a 401, unless somebody has brought one since ``refused``.

        A token that was refused right after it was made is not made again.
        """
        if self._header == refused:
            if self._clock() < self._refreshed_at + _PAUSE_S:
                return None
            self._header = None
        self._refused = refused
        return await self.authorization()

    async def _refreshed(self) -> str:
        if self._clock() < self._paused_until:
            raise self._failure()
        try:
            return await self._flights.run("", self._refresh)
        except WorkCancelled:
            raise self._failure() from None

    async def _refresh(self) -> str:
        """The header by a refresh that goes on to its end, whoever waits for it.

        Its answer may hold the only refresh token that the provider still takes.
        """
        task = self._under_way
        if task is None or task.done():
            task = self._under_way = asyncio.create_task(self._refresh_once())
            task.add_done_callback(_look_at)
        return await asyncio.shield(task)

    async def _refresh_once(self) -> str:
        """The header by a token that another process has brought, else by one that is asked for now.

        Of several processes one asks: a provider that rotates refresh tokens takes each of them once.
        """
        if self._vault is None:
            return await self._ask()
        try:
            header = self._adopt(await self._vault.load(self._place))
            if header is not None:
                return header
            async with self._vault.exclusive(self._place):
                header = self._adopt(await self._vault.load(self._place))
                if header is None:
                    header = await self._ask()
                    await self._share(header)
                return header
        except StoreError:
            # To ask without the others would take the refresh token away from them.
            self._fell_through(None, "the record, which shares tokens between processes, cannot be used")
            raise self._failure() from None

    def _adopt(self, kept: bytes | None) -> str | None:
        """Go on with what another process has kept; the header where its token is good still."""
        tokens = _read_tokens(kept)
        if tokens is None or self._unsaved:
            return None  # What is kept is older than what this process has, and spent.
        self._refresh_token = tokens.refresh_token
        header = f"Bearer {tokens.access_token}"
        age_s = self._now() - tokens.made_at
        if header == self._refused or age_s < -_EARLY_S or age_s >= tokens.lasts_s - _early(tokens.lasts_s):
            return None
        self._take(header, tokens.lasts_s, max(age_s, 0.0))
        return header

    async def _share(self, header: str) -> None:
        """Keep what the token endpoint gave, for the other processes and for the next start."""
        lasts_s = self._ends_at - self._refreshed_at
        tokens = {
            "access_token": header.removeprefix("Bearer "),
            "refresh_token": self._refresh_token,
            "made_at": self._now(),
            "lasts_s": lasts_s if math.isfinite(lasts_s) else None,
        }
        self._unsaved = True
        try:
            if self._vault is not None:
                await self._vault.save(self._place, orjson.dumps(tokens))
                self._unsaved = False
        except StoreError:
            # This process has them; another one may find its refresh token spent.
            self._logger.error("credentials_not_kept", connection=self._name)

    def _take(self, header: str, lasts_s: float, age_s: float) -> None:
        """Use a token that was made so many seconds ago."""
        self._header = header
        self._refreshed_at = self._clock() - age_s
        self._ends_at = self._refreshed_at + lasts_s
        self._good_until = self._ends_at - _early(lasts_s)

    async def _ask(self) -> str:
        """Ask the token endpoint, take what it gives; no word of its answer leaves this method."""
        fields = {
            "grant_type": "refresh_token",
            "refresh_token": self._refresh_token,
            "client_id": self._connection.client_id,
        }
        if self._connection.client_secret:
            fields["client_secret"] = self._connection.client_secret
        try:
            answer = await self._exchange(self._connection.token_url, fields)
        except HttpFailure as failure:
            self._fell_through(failure.status, _oauth_error(failure.json))
            raise self._failure() from None
        token = _token(answer, "access_token")
        kind = answer.get("token_type", "Bearer") if isinstance(answer, dict) else ""
        if token is None or not isinstance(kind, str) or kind.lower() != "bearer":
            self._fell_through(200, "no bearer token in its answer")
            raise self._failure()
        header = f"Bearer {token}"
        self._take(header, _seconds(answer.get("expires_in")), 0.0)
        self._refresh_token = _token(answer, "refresh_token") or self._refresh_token
        self._logger.info("credentials_refreshed", connection=self._name)
        return header

    def _fell_through(self, status: int | None, reason: str) -> None:
        """Log a refresh that failed, and do not ask again at once."""
        self._paused_until = self._clock() + _PAUSE_S
        self._logger.warning("credentials_not_refreshed", connection=self._name, status=status, reason=reason)

    def _failure(self) -> ToolFailure:
        return HttpFailure(f'the connection "{self._name}" cannot be used now; its owner has to look at it')


def host_entry(url: str) -> str:
    """The entry of a tool's host list that fits a URL: its host, with the port if it is not the usual."""
    parsed = URL(url)
    host = parsed.host or ""
    return host if parsed.is_default_port() else f"{host}:{parsed.port}"


@dataclass(frozen=True, slots=True)
class _Tokens:
    """What is kept in a vault.  ``made_at`` is seconds since the epoch."""

    access_token: str = field(repr=False)
    refresh_token: str = field(repr=False)
    made_at: float
    lasts_s: float


def _look_at(task: asyncio.Task[str]) -> None:
    """Look at a refresh's exception, which may have nobody left to look at it."""
    if not task.cancelled():
        task.exception()


def _read_tokens(kept: bytes | None) -> _Tokens | None:
    """Tokens as a vault has them; ``None`` for whatever else stands there."""
    try:
        said = orjson.loads(kept or b"null")
    except orjson.JSONDecodeError:
        return None
    if not isinstance(said, dict):
        return None
    access, refresh, made_at = (
        _token(said, "access_token"),
        _token(said, "refresh_token"),
        said.get("made_at"),
    )
    if access is None or refresh is None or not isinstance(made_at, int | float):
        return None
    return _Tokens(access, refresh, made_at, _seconds(said.get("lasts_s")))


def _place(name: str, connection: OAuthToken) -> str:
    """Where a connection's tokens are kept: another refresh token in the configuration is another place.

    So an operator who puts a new one there is not answered with what came of the old one.
    """
    parts = (name, connection.token_url, connection.client_id, connection.refresh_token)
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()


def _early(lasts_s: float) -> float:
    """How long before its end a token that lasts so long is replaced."""
    return min(_EARLY_S, lasts_s / 2) if math.isfinite(lasts_s) else 0.0


def _token(answer: Any, name: str) -> str | None:
    """A token of an answer that a header can carry."""
    token = answer.get(name) if isinstance(answer, dict) else None
    if not isinstance(token, str) or not 0 < len(token) <= _MAX_TOKEN:
        return None
    return token if token.isascii() and token.isprintable() and " " not in token else None


def _seconds(value: Any) -> float:
    """``expires_in``; infinite where the answer does not say, until a 401 does."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return math.inf
    try:
        seconds = float(value)
    except ValueError:
        return math.inf
    return seconds if seconds > 0 and math.isfinite(seconds) else math.inf


def _oauth_error(answer: Any) -> str:
    """The error code of a token endpoint, if it is one of the words that RFC 6749 has for it."""
    code = answer.get("error") if isinstance(answer, dict) else None
    known = (
        "invalid_request",
        "invalid_client",
        "invalid_grant",
        "unauthorized_client",
        "unsupported_grant_type",
        "invalid_scope",
    )
    return code if isinstance(code, str) and code in known else "no usable answer"
