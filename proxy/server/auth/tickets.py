"""Finds a caller again without its credential, when another process runs its request again.

A ticket identifies a caller that was let in, and holds no secret. It is valid as long as the credential would
be: the key is not revoked or expired, and the server's authentication mode is the same. The rights and limits
are those that the caller has when the ticket is used.
"""

import hashlib
from collections.abc import Mapping
from typing import Any

from proxy.rights.callers import Caller
from proxy.server.auth.authenticate import Authentication


class Tickets:
    """The maker and reader of tickets."""

    def __init__(self, authentication: Authentication) -> None:
        self._mode = authentication.mode
        self._ring = authentication.ring
        start_token = authentication.start_token.encode()
        self._start_token = hashlib.blake2b(start_token, digest_size=16).hexdigest()

    async def of(self, caller: Caller) -> Mapping[str, Any] | None:
        """Return the ticket of a caller; ``None`` if the server cannot find its credential again: a minted
        token, or the provider's own key.

        Raises :class:`~proxy.base.errors.RequestError` (503) if keys cannot be read.
        """
        if self._mode == "forward":
            return None
        if caller == Caller(counted_as=caller.counted_as):
            return self._of_anybody(caller.counted_as)
        key = await self._ring.find_by_id(caller.name)
        return {"key": caller.name} if key is not None and key.caller == caller else None

    def _of_anybody(self, counted_as: str) -> Mapping[str, Any] | None:
        """Return the ticket of a caller that came without a key."""
        if self._mode == "open":
            return {"open": counted_as}
        return {"start_token": self._start_token, "open": counted_as} if self._mode == "start_token" else None

    async def caller(self, ticket: Mapping[str, Any]) -> Caller | None:
        """Return the caller as it would be let in now; ``None`` if it would not be.

        Raises :class:`~proxy.base.errors.RequestError` (503) if keys cannot be read.
        """
        if (name := ticket.get("key")) is not None:
            key = await self._ring.find_by_id(str(name)) if self._mode != "forward" else None
            return None if key is None else key.caller
        counted_as = str(ticket.get("open"))
        return Caller(counted_as=counted_as) if ticket == self._of_anybody(counted_as) else None
