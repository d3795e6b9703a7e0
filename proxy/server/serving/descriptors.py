"""File descriptors: the last ones are kept for answers, upstreams and the record.

Where none are left, the event loop closes a new connection without a word, and a request that was taken
cannot reach its upstream.  The system gives the lowest free number, so the number of a new connection says
how near the end is.
"""

import asyncio
import contextlib
from typing import Final

__all__ = ["Descriptors"]

_RESERVE: Final = 64
_SMALLEST_PART: Final = 4
"""Of a small limit a quarter is kept."""


class Descriptors:
    """Whether a new connection is one too many for this process's limit."""

    def __init__(self, limit: int | None = None) -> None:
        """``limit`` of the process, that of the system unless given."""
        self._most = 0
        if limit is None:
            limit = _limit()
        if limit:
            self._most = limit - min(_RESERVE, limit // _SMALLEST_PART)

    def is_short(self, transport: asyncio.BaseTransport) -> bool:
        """Whether only the reserve is left beside this connection."""
        if not self._most:
            return False
        sock = transport.get_extra_info("socket")
        return sock is not None and sock.fileno() >= self._most


def _limit() -> int:
    with contextlib.suppress(ImportError):  # not a POSIX system
        import resource

        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return 0 if limit == resource.RLIM_INFINITY else limit
    return 0
