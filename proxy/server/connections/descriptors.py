"""Reserve the last file descriptors for answers, upstreams and the record.

If none are left, the event loop closes a new connection without a message, and an accepted request cannot
reach its upstream. The system assigns the lowest free number, so the number of a new connection shows how
many are in use.
"""

import asyncio
import contextlib
from typing import Final

_RESERVE: Final = 64
_SMALLEST_PART: Final = 4
"""The reserve is at most a quarter of the limit."""


class Descriptors:
    """Checks whether a new connection exceeds this process's limit of file descriptors."""

    def __init__(self, limit: int | None = None) -> None:
        """Create the check; ``limit`` defaults to the limit that the system gives the process."""
        self._most = 0
        if limit is None:
            limit = _limit()
        if limit:
            self._most = limit - min(_RESERVE, limit // _SMALLEST_PART)

    def is_short(self, transport: asyncio.BaseTransport) -> bool:
        """Return whether this connection takes a descriptor of the reserve."""
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
