"""Keep an OAuth access token fresh: one refresh for all calls that wait, and one process for all processes.

If there is a vault, it stores refreshed tokens and the refresh tokens that a provider rotated. All processes
share them, one process refreshes, and a restart continues with the newest tokens.
"""

import asyncio
import math
import time
from collections.abc import Callable
from typing import Final

import structlog

from proxy.base.errors import StoreError, ToolFailure
from proxy.records.rows import TokenVault
from proxy.tools.access.single_flight import SingleFlight, WorkCancelled
from proxy.tools.contract.capabilities import HttpFailure
from proxy.tools.oauth.grants import OAuthGrant
from proxy.tools.oauth.port import OAuthFault, OAuthHttp
from proxy.tools.oauth.stored_tokens import StoredTokens, read_stored_tokens

_EARLY_S: Final = 60.0
"""Replace a token this many seconds before it expires, or after half its lifetime if that is later."""

_PAUSE_S: Final = 5.0
"""Seconds without another try after a failed refresh, and after a 401 for a new token."""

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
