"""The header of an OAuth access token: fetched once for all who wait, and by one process for all.

Tokens that were refreshed, and refresh tokens that a provider rotated, are kept in a vault, where there is
one: all processes share them, one of them refreshes, and a restart goes on with the newest.
"""

import asyncio
import math
import time
from collections.abc import Callable
from typing import Final

import structlog

from proxy.errors import StoreError, ToolFailure
from proxy.records import TokenVault
from proxy.tools.access.single_flight import SingleFlight, WorkCancelled
from proxy.tools.contract.capabilities import HttpFailure
from proxy.tools.oauth.grants import Grant
from proxy.tools.oauth.kept import Kept, read_kept
from proxy.tools.oauth.port import OAuthFault, OAuthHttp

__all__ = ["ConnectionFailure", "Refreshed"]

_EARLY_S: Final = 60.0
"""Seconds before its end that a token is replaced; half its life where that is shorter."""

_PAUSE_S: Final = 5.0
"""Seconds after a failed refresh in which no other is tried."""

_LOOK_EVERY_S: Final = 5.0
"""Until a login or a logout of another process is noticed."""


class ConnectionFailure(HttpFailure):
    """A connection that cannot be used.

    The message is for the model; ``reason`` is for the operator, and ``needs_login`` says that only a login
    helps.  Neither has a token or a secret in it.
    """

    def __init__(self, name: str, reason: str, *, needs_login: bool = False) -> None:
        self.reason = reason
        self.needs_login = needs_login
        super().__init__(f'the connection "{name}" cannot be used now; its owner has to look at it')


class Refreshed:
    """The header of one connection.  Belongs to one event loop."""

    def __init__(
        self,
        name: str,
        grant: Grant,
        http: OAuthHttp,
        *,
        vault: TokenVault | None,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        """``clock`` gives monotonic seconds, ``now`` seconds since the epoch, which processes agree on."""
        self._name = name
        self._grant = grant
        self._http = http
        self._vault = vault
        self._clock = clock
        self._now = now
        self._kept: Kept | None = None
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
        """The header's value, refreshed before its time is over.

        Raises :class:`ConnectionFailure` where there is none.
        """
        if self._header is not None and self._clock() < self._good_until and not self._may_be_another():
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

    async def newer(self, refused: str) -> str | None:
        """The value of a login after the one that made ``refused``, which may do more; ``None`` for none.

        No token is asked for: a new one could do no more than the old one.
        """
        if self._header == refused and self._grant.is_login:
            self._looked_at = -math.inf
        header = await self.authorization()
        return header if header != refused else None

    def _may_be_another(self) -> bool:
        """Whether it is time to look if somebody has logged in anew, or out."""
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
            # To ask without the others would take the refresh token away from them.
            raise self._fell_through(
                OAuthFault("the record, which shares tokens between processes, cannot be used")
            ) from None

    def _adopt(self, written: bytes | None) -> str | None:
        """Go on with what another process has kept; the header where its token is good still."""
        self._looked_at = self._clock()
        kept = read_kept(written)
        if kept is None or not self._grant.fits(kept):
            if self._grant.is_login:
                self._forget()  # Somebody has logged out, or the login was for something else.
            return None
        if self._unsaved and _is_same_login(kept, self._kept):
            # What is kept is older than what this process has, and spent.
            return self._header if self._clock() < self._good_until else None
        self._unsaved = False
        header = f"Bearer {kept.access_token}"
        self._kept = kept
        age_s = self._now() - kept.made_at
        if header == self._refused or age_s < -_EARLY_S or age_s >= kept.lasts_s - _early(kept.lasts_s):
            return None
        if header != self._header:
            self._take(kept, max(age_s, 0.0))
        return header

    def _forget(self) -> None:
        self._kept, self._header, self._unsaved = None, None, False

    async def _share(self, vault: TokenVault) -> None:
        """Keep what the token endpoint gave, for the other processes and for the next start."""
        if self._kept is None:
            return
        try:
            await vault.save(self._grant.place, self._kept.written())
            self._unsaved = False
        except StoreError:
            # This process has them; another one may find its refresh token spent.
            self._logger.error("credentials_not_kept", connection=self._name)

    def _take(self, kept: Kept, age_s: float) -> None:
        """Use a token that was made so many seconds ago."""
        self._kept = kept
        self._header = f"Bearer {kept.access_token}"
        self._refreshed_at = self._clock() - age_s
        self._ends_at = self._refreshed_at + kept.lasts_s
        self._good_until = self._ends_at - _early(kept.lasts_s)

    async def _ask(self) -> str:
        """Ask for a token, and take it."""
        try:
            kept = await self._grant.ask(self._http, self._kept, self._now)
        except OAuthFault as fault:
            raise self._fell_through(fault) from None
        self._take(kept, 0.0)
        self._unsaved = True
        self._failed = None
        self._logger.info("credentials_refreshed", connection=self._name)
        return f"Bearer {kept.access_token}"

    def _fell_through(self, fault: OAuthFault) -> ConnectionFailure:
        """Log a refresh that failed, and do not ask again at once; the failure for whoever waits.

        Where somebody has to log in, nothing is asked but the record, and it is said once.
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


def _is_same_login(one: Kept, other: Kept | None) -> bool:
    ids = [kept.login.id if kept is not None and kept.login is not None else "" for kept in (one, other)]
    return ids[0] == ids[1]


def _look_at(task: asyncio.Task[str]) -> None:
    """Look at a refresh's exception, which may have nobody left to look at it."""
    if not task.cancelled():
        task.exception()


def _early(lasts_s: float) -> float:
    """How long before its end a token that lasts so long is replaced."""
    return min(_EARLY_S, lasts_s / 2) if math.isfinite(lasts_s) else 0.0
