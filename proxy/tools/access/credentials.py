"""Provide credentials by connection name: static tokens, and OAuth access tokens kept fresh (rule T6).

A tool names a connection and gets an HTTP client that adds the ``Authorization`` header itself. A tool never
sees a token, not even its own. A connection for an MCP server serves that server only.

One refresh serves all calls that wait. If there is a vault, it stores refreshed tokens and the refresh tokens
that a provider rotated. All processes share them, one process refreshes, and a restart continues with the
newest tokens.
"""

import asyncio
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import structlog

from proxy.base.errors import StoreError, ToolFailure
from proxy.records.rows import TokenVault
from proxy.tools.access.egress import EgressClient, EgressPool
from proxy.tools.access.placement import GIVEN, Placement
from proxy.tools.access.single_flight import SingleFlight, WorkCancelled
from proxy.tools.contract.capabilities import HttpClient, HttpFailure, Unconnected, unconnected
from proxy.tools.contract.provider import Person
from proxy.tools.oauth.grants import ClientCredentials, LoggedIn, OAuthGrant, OAuthToken, grant_of
from proxy.tools.oauth.port import OAuthFault, OAuthHttp
from proxy.tools.oauth.stored_tokens import StoredTokens, read_stored_tokens

_EARLY_S: Final = 60.0
"""Replace a token this many seconds before it expires, or after half its lifetime if that is later."""

_PAUSE_S: Final = 5.0
"""Seconds without another try after a failed refresh, and after a 401 for a new token."""

_MOST_PEOPLE: Final = 1000
"""The most logins of end users that a process keeps at hand; the others are read again."""

_NOBODY: Final = (
    "this tool uses the account of whoever asks, but it is not known who that is: the key is shared, and the "
    "request names no user (auth.end_user)"
)

_LOOK_EVERY_S: Final = 5.0
"""Seconds between checks for a login or logout in another process."""


class ConnectionFailure(HttpFailure):
    """A connection that cannot be used.

    The message is for the model, ``reason`` for the operator; neither contains a token or a secret.
    ``needs_login`` says that only a login helps.
    """

    def __init__(self, name: str, reason: str, *, needs_login: bool = False) -> None:
        self.reason = reason
        self.needs_login = needs_login
        super().__init__(f'the connection "{name}" cannot be used now; its owner has to look at it')


class LoginNeeded(HttpFailure):
    """A call for a person who has not logged in; the message has the link at which to do so."""

    def __init__(self, link: str) -> None:
        super().__init__(
            "the user has to log in first. Show the user this link as it is, and say that it works for ten "
            f"minutes and that you can go on afterwards: {link}"
        )
        self.code = "login_required"


class TokenRefresher:
    """The ``Authorization`` header of one connection, refreshed as needed. Belongs to one event loop."""

    def __init__(
        self,
        name: str,
        grant: OAuthGrant,
        http: OAuthHttp,
        *,
        vault: TokenVault | None,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        """``clock`` returns monotonic seconds; ``now`` seconds since the epoch, equal for all processes."""
        self._name = name
        self._grant = grant
        self._http = http
        self._vault = vault
        self._clock = clock
        self._now = now
        self._tokens: StoredTokens | None = None
        self._unsaved = False
        self._refused = ""
        self._under_way: asyncio.Task[str] | None = None
        self._header: str | None = None
        self._good_until = self._ends_at = 0.0
        self._refreshed_at = self._looked_at = -math.inf
        self._paused_until = -math.inf
        self._failed: ConnectionFailure | None = None
        self._flights: SingleFlight[str] = SingleFlight()
        self._logger: structlog.typing.FilteringBoundLogger = structlog.get_logger("proxy.tools")

    async def authorization(self) -> str:
        """Return the header's value; refresh the token shortly before it expires.

        Raises :class:`ConnectionFailure` if there is no valid token.
        """
        if self._header is not None and self._clock() < self._good_until and not self._is_check_due():
            return self._header
        try:
            return await self._refreshed()
        except ToolFailure:
            if self._header is not None and self._clock() < self._ends_at:
                return self._header  # Due for a refresh, but still valid.
            raise

    async def renew(self, refused: str) -> str | None:
        """Return another value after a 401 for ``refused``; refresh unless a newer token is there already.

        Returns ``None`` if the refused token is only a few seconds old: a refresh would not help.
        """
        if self._header == refused:
            if self._clock() < self._refreshed_at + _PAUSE_S:
                return None
            self._header = None
        self._refused = refused
        return await self.authorization()

    async def newer(self, refused: str) -> str | None:
        """Return the value from a login newer than ``refused``, which may have more rights; ``None`` if none.

        It does not refresh for this: a refreshed token has no more rights than the old one.
        """
        if self._header == refused and self._grant.is_login:
            self._looked_at = -math.inf
        header = await self.authorization()
        return header if header != refused else None

    def _is_check_due(self) -> bool:
        """Return whether it is time to check for a new login or a logout."""
        due = self._clock() >= self._looked_at + _LOOK_EVERY_S
        return self._grant.is_login and self._vault is not None and due

    async def _refreshed(self) -> str:
        if self._clock() < self._paused_until and self._failed is not None:
            raise self._failed
        try:
            return await self._flights.run("", self._refresh)
        except WorkCancelled:
            raise ConnectionFailure(self._name, "the refresh was cancelled") from None

    async def _refresh(self) -> str:
        """Return the header from a refresh that always runs to its end, even if no caller waits for it.

        Its response may contain the only refresh token that the provider still accepts.
        """
        task = self._under_way
        if task is None or task.done():
            task = self._under_way = asyncio.create_task(self._refresh_once())
            task.add_done_callback(_retrieve_exception)
        return await asyncio.shield(task)

    async def _refresh_once(self) -> str:
        """Return the header with a token that another process has saved, or else with a new one.

        Only one process requests it: a provider that rotates refresh tokens accepts each of them once.
        """
        vault, place = self._vault, self._grant.place
        if vault is None:
            return await self._ask()
        try:
            header = self._adopt(await vault.load(place))
            if header is not None and not self._unsaved:
                return header
            async with vault.exclusive(place):
                header = self._adopt(await vault.load(place)) or await self._ask()
                if self._unsaved:
                    await self._share(vault)
                return header
        except StoreError:
            # A refresh without the vault would make the refresh token useless for the other processes.
            raise self._note_failure(
                OAuthFault("the record, which shares tokens between processes, cannot be used")
            ) from None

    def _adopt(self, written: bytes | None) -> str | None:
        """Adopt the tokens in the vault and return the header; ``None`` if there is no fresh token."""
        self._looked_at = self._clock()
        tokens = read_stored_tokens(written)
        if tokens is None or not self._grant.fits(tokens):
            if self._grant.is_login:
                self._forget()  # The user has logged out, or the login was for another configuration.
            return None
        if self._unsaved and _is_same_login(tokens, self._tokens):
            # The vault has older tokens than this process, and they are used up.
            return self._header if self._clock() < self._good_until else None
        self._unsaved = False
        header = f"Bearer {tokens.access_token}"
        self._tokens = tokens
        age_s = self._now() - tokens.made_at
        if header == self._refused or age_s < -_EARLY_S or age_s >= tokens.lasts_s - _early(tokens.lasts_s):
            return None
        if header != self._header:
            self._take(tokens, max(age_s, 0.0))
        return header

    def _forget(self) -> None:
        self._tokens, self._header, self._unsaved = None, None, False

    async def _share(self, vault: TokenVault) -> None:
        """Save the new tokens in the vault for the other processes and for the next start."""
        if self._tokens is None:
            return
        try:
            await vault.save(self._grant.place, self._tokens.to_json())
            self._unsaved = False
        except StoreError:
            # This process has the tokens; the refresh token of another process may be used up.
            self._logger.error("credentials_not_kept", connection=self._name)

    def _take(self, tokens: StoredTokens, age_s: float) -> None:
        """Use a token that was issued ``age_s`` seconds ago."""
        self._tokens = tokens
        self._header = f"Bearer {tokens.access_token}"
        self._refreshed_at = self._clock() - age_s
        self._ends_at = self._refreshed_at + tokens.lasts_s
        self._good_until = self._ends_at - _early(tokens.lasts_s)

    async def _ask(self) -> str:
        """Request a token, use it, and return its header."""
        try:
            tokens = await self._grant.ask(self._http, self._tokens, self._now)
        except OAuthFault as fault:
            raise self._note_failure(fault) from None
        self._take(tokens, 0.0)
        self._unsaved = True
        self._failed = None
        self._logger.info("credentials_refreshed", connection=self._name)
        return f"Bearer {tokens.access_token}"

    def _note_failure(self, fault: OAuthFault) -> ConnectionFailure:
        """Log a failed refresh, pause further refreshes, and return the failure for the waiting calls.

        If a login is needed, there is no pause, since later tries only read the record, and the proxy logs
        the same reason once.
        """
        failure = ConnectionFailure(self._name, str(fault), needs_login=fault.needs_login)
        if not fault.needs_login:
            self._paused_until = self._clock() + _PAUSE_S
        if not fault.needs_login or self._failed is None or self._failed.reason != failure.reason:
            self._logger.warning(
                "credentials_not_refreshed", connection=self._name, status=fault.status, reason=failure.reason
            )
        self._failed = failure
        return failure


def _is_same_login(first: StoredTokens, other: StoredTokens | None) -> bool:
    ids = [
        tokens.login.id if tokens is not None and tokens.login is not None else ""
        for tokens in (first, other)
    ]
    return ids[0] == ids[1]


def _retrieve_exception(task: asyncio.Task[str]) -> None:
    """Retrieve the exception of a refresh, because no waiter may be left to do so."""
    if not task.cancelled():
        task.exception()


def _early(lasts_s: float) -> float:
    """Return how many seconds before its expiry a token with this lifetime is replaced."""
    return min(_EARLY_S, lasts_s / 2) if math.isfinite(lasts_s) else 0.0


@dataclass(frozen=True, slots=True)
class StaticToken:
    """A token that never changes. ``server_url`` is the URL of its MCP server, if it is for one.

    ``header`` is the name of the header that carries the token alone; empty: ``Authorization``, as a bearer
    token.
    """

    token: str = field(repr=False)
    server_url: str = ""
    header: str = ""


Connection = StaticToken | OAuthToken | ClientCredentials | LoggedIn


class _Authorizer(Protocol):
    async def authorization(self) -> str: ...

    async def renew(self, refused: str) -> str | None: ...

    async def newer(self, refused: str) -> str | None: ...


class CredentialBroker:
    """All connections of the process. Belongs to one event loop.

    Args:
        connections: the credentials of each connection by its name.
        pool: the HTTP pool with which the tools' clients call services.
        http: returns the HTTP client with which a connection calls its authorization server.
        clock: returns monotonic seconds.
        vault: stores refreshed tokens, shared with other processes and kept after this one ends.
        now: returns seconds since the epoch, the same for all processes.
        link: returns the link at which a person logs in to a connection.
    """

    def __init__(
        self,
        connections: Mapping[str, Connection],
        pool: EgressPool,
        http: Callable[[Connection], OAuthHttp],
        *,
        clock: Callable[[], float] = time.monotonic,
        vault: TokenVault | None = None,
        now: Callable[[], float] = time.time,
        link: Callable[[str, Person], str] | None = None,
    ) -> None:
        self._pool = pool
        self._connections = connections
        self._link = link

        def refresher(name: str, connection: Connection, person: str = "") -> TokenRefresher:
            if isinstance(connection, StaticToken):
                raise TypeError("a static token is never refreshed")
            grant = grant_of(name, connection, person)
            return TokenRefresher(name, grant, http(connection), vault=vault, clock=clock, now=now)

        self._refresher = refresher
        self._authorizers: dict[str, _Authorizer] = {
            name: _Static(connection) if isinstance(connection, StaticToken) else refresher(name, connection)
            for name, connection in connections.items()
        }
        self._of_people: OrderedDict[tuple[str, str], TokenRefresher] = OrderedDict()

    @property
    def names(self) -> frozenset[str]:
        """The names of all connections."""
        return frozenset(self._authorizers)

    def connection(self, name: str) -> Connection | None:
        """Return the configured connection of this name, or ``None``."""
        return self._connections.get(name)

    def client(self, name: str, hosts: Sequence[str]) -> HttpClient:
        """Return a client for the named connection that reaches only ``hosts``.

        Implements :data:`~proxy.tools.contract.capabilities.ConnectedHttpSource`. If the connection does not
        exist, or is for an MCP server or for single users, every request fails with a message about it.
        """
        connection = self._connections.get(name)
        if isinstance(connection, LoggedIn) and connection.per_user:
            return Unconnected(name)  # There is no account for all.
        header = connection.header if isinstance(connection, StaticToken) else ""
        place = Placement(name=header) if header else GIVEN
        return self.placing_client(name, hosts, place) or Unconnected(name)

    def placing_client(
        self, name: str, hosts: Sequence[str], place: Placement, person: Person | None = None
    ) -> EgressClient | None:
        """Return a client whose requests carry the credentials in a place of their own; ``None`` if the
        connection does not exist or is for an MCP server.

        ``person`` is the one for whom the requests are made. Only a connection ``per_user`` needs one, and
        its requests carry the credentials of nobody else; without one this raises :class:`ToolFailure`.
        """
        authorizer, connection = self._authorizers.get(name), self._connections.get(name)
        if authorizer is None or connection is None or connection.server_url:
            return None
        if not isinstance(connection, LoggedIn) or not connection.per_user:
            return self._pool.client(hosts, authorizer, place=place)
        if person is None or self._link is None:
            raise ToolFailure(_NOBODY, code="login_required")
        own = _OfPerson(self._of_person(name, connection, person), name, person, self._link)
        return self._pool.client(hosts, own, place=place)

    def _of_person(self, name: str, connection: LoggedIn, person: Person) -> TokenRefresher:
        """Return what keeps the tokens of a person fresh; of those that are used, the latest are kept."""
        key = name, person.name
        known = self._of_people.get(key)
        if known is None:
            known = self._of_people[key] = self._refresher(name, connection, person.name)
            if len(self._of_people) > _MOST_PEOPLE:
                self._of_people.popitem(last=False)
        self._of_people.move_to_end(key)
        return known

    async def prepare(self, connection: str) -> None:
        """Load the credentials of a connection; calls that wait share one refresh.

        Implements :class:`~proxy.tools.contract.capabilities.Credentials`.
        """
        known = self._connections.get(connection)
        if isinstance(known, LoggedIn) and known.per_user:
            return  # The call itself knows for whom it is.
        await self._authorizer(connection).authorization()

    async def authorize(
        self, connection: str, server_url: str, refused: str = "", *, wants_scope: bool = False
    ) -> str | None:
        """Return the value of ``Authorization`` for the MCP server at ``server_url``.

        ``refused`` is a value that the server refused; the result is then another one, or ``None``.
        ``wants_scope`` says that the refused token lacks a scope, so that only a new login helps. Raises
        :class:`~proxy.base.errors.ToolFailure` if there is no value or the connection is for another server.
        """
        authorizer = self._authorizer(connection)
        if self._connections[connection].server_url != server_url:
            raise unconnected(connection)
        if not refused:
            return await authorizer.authorization()
        return await (authorizer.newer(refused) if wants_scope else authorizer.renew(refused))

    def _authorizer(self, connection: str) -> _Authorizer:
        authorizer = self._authorizers.get(connection)
        if authorizer is None:
            raise unconnected(connection)
        return authorizer


class _OfPerson:
    """The header of one person's login. If only a login helps, the failure has the link for it."""

    def __init__(
        self, refresher: TokenRefresher, name: str, person: Person, link: Callable[[str, Person], str]
    ) -> None:
        self._refresher = refresher
        self._name = name
        self._person = person
        self._link = link

    async def authorization(self) -> str:
        """Return the header's value; raise :class:`LoginNeeded` or :class:`ConnectionFailure`."""
        try:
            return await self._refresher.authorization()
        except ConnectionFailure as failure:
            raise self._explained(failure) from None

    async def renew(self, refused: str) -> str | None:
        """Return another value, as :meth:`TokenRefresher.renew` does; raise as :meth:`authorization`."""
        try:
            return await self._refresher.renew(refused)
        except ConnectionFailure as failure:
            raise self._explained(failure) from None

    def _explained(self, failure: ConnectionFailure) -> HttpFailure:
        return LoginNeeded(self._link(self._name, self._person)) if failure.needs_login else failure


class _Static:
    """The header of a static token."""

    def __init__(self, connection: StaticToken) -> None:
        self._connection = connection

    async def authorization(self) -> str:
        """Return the header's value."""
        token = self._connection.token
        return token if self._connection.header else f"Bearer {token}"

    async def renew(self, refused: str) -> str | None:
        """Return ``None``: there is no other value."""
        return None

    async def newer(self, refused: str) -> str | None:
        """Return ``None``: there is no other value."""
        return None
