"""Sessions of MCP clients that make a handshake: an id that tells them apart, and their open calls.

The id itself proves that this server gave it to this caller, so no session is stored. Any worker knows it,
also after a restart, and a client may have as many as it likes. It has one purpose. A client cancels a
request by its number, and two programs with one key may use the same numbers: both begin at 1.
"""

import base64
import binascii
import hashlib
import hmac
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from proxy.wires.mcp.messages import RequestId

_RANDOM: Final = 16
_MAC: Final = 16


class McpSessions:
    """The sessions of a process."""

    def __init__(self, key: bytes) -> None:
        """``key`` is a secret that all processes of the record share."""
        self._key = hashlib.blake2b(b"toolrelay mcp sessions", key=key, digest_size=32).digest()
        self._open: dict[tuple[str, RequestId], Callable[[], object]] = {}

    def issue(self, caller: str) -> str:
        """Return the id of a new session for a caller."""
        random = os.urandom(_RANDOM)
        return base64.urlsafe_b64encode(random + self._mac(random, caller)).decode().rstrip("=")

    def knows(self, session: str, caller: str) -> bool:
        """Return whether this is the id of a session of that caller."""
        try:
            raw = base64.urlsafe_b64decode(session + "=" * (-len(session) % 4))
        except (binascii.Error, ValueError):
            return False
        if len(raw) != _RANDOM + _MAC:
            return False
        return hmac.compare_digest(raw[_RANDOM:], self._mac(raw[:_RANDOM], caller))

    @contextmanager
    def open(self, session: str, number: RequestId | None, cancel: Callable[[], object]) -> Iterator[None]:
        """Make the request with that number cancellable inside of this block; without a session it is not.

        If a client gives two open requests one number, only the older one can be cancelled.
        """
        place = (session, number if number is not None else "")
        if not session or place in self._open:
            yield
            return
        self._open[place] = cancel
        try:
            yield
        finally:
            del self._open[place]

    def cancel(self, session: str, number: RequestId) -> None:
        """Cancel a request if it is open in this process; otherwise do nothing."""
        cancel = self._open.get((session, number))
        if session and cancel is not None:
            cancel()

    def _mac(self, random: bytes, caller: str) -> bytes:
        signed = random + caller.encode("utf-8", "surrogatepass")
        return hashlib.blake2b(signed, key=self._key, digest_size=_MAC).digest()
