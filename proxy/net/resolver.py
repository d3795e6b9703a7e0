"""Looks up host names in a few threads that nothing else uses.

A name whose DNS server never answers blocks a thread of libuv's or asyncio's shared pool for half a minute.
A few such names stop every other connection of the process. Here they block only threads for one purpose:
upstreams and tools have a :class:`Resolver` each.
"""

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from proxy.base.caches import CacheSize, declare
from proxy.base.values import value_class

AddressInfo = tuple[
    socket.AddressFamily,
    socket.SocketKind,
    int,
    str,
    tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes],
]
"""An entry of the result of ``getaddrinfo``."""

LookUp = Callable[[str], Sequence[AddressInfo]]

_NO_ADDRESS: Final = frozenset({socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)})
"""Errors that the DNS server itself reports, as opposed to no answer from it."""

_MOST_THREADS: Final = 16
_MOST_NAMES: Final = 1024
_MAX_BYTES: Final = 4 * 2**20
"""The limit for all answers: a DNS server may send thousands of addresses for one name."""
_NAME_BYTES: Final = 1000
_ADDRESS_BYTES: Final = 400
_FRESH_S: Final = 10.0
"""Seconds for which an answer is used without asking again."""
_STALE_S: Final = 3600.0
"""Seconds for which an answer is used as long as the resolver gives no other."""
_PATIENCE_S: Final = 1.0
"""Seconds that a look-up may take before an older answer is used instead."""


@value_class
class _Known:
    """The last good answer for a name, and its time (seconds on the monotonic clock)."""

    infos: Sequence[AddressInfo]
    at: float


class Resolver:
    """Looks up host names, each once for all tasks that wait for it, and caches the last good answers."""

    def __init__(
        self,
        name: str,
        *,
        threads: int = _MOST_THREADS,
        patience_s: float = _PATIENCE_S,
        look_up: LookUp | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``name`` says in errors whose names these are. At most ``threads`` look-ups run at a time.

        ``look_up`` blocks and returns addresses with port 0, or raises ``OSError``. The default is the
        system's ``getaddrinfo``.
        """
        self._name = name
        self._threads = threads
        self._patience_s = patience_s
        self._look_up = look_up or _system
        self._clock = clock
        self._known: dict[str, _Known] = {}
        self._pending: dict[str, asyncio.Future[Sequence[AddressInfo]]] = {}
        self._busy = 0
        declare("addresses", self._cache_size)

    @property
    def busy(self) -> int:
        """The number of look-ups in progress."""
        return self._busy

    async def resolve(self, host: str, port: int) -> Sequence[AddressInfo]:
        """Return the addresses of ``host`` with ``port``, never empty.

        A literal address is returned without a look-up. Raises ``OSError``; it is ``socket.gaierror`` if the
        name has no address, or if as many other names as there are threads wait for an answer. This method
        has no time limit. A caller that gives up does not end the look-up for the others.
        """
        if (addresses := numeric(host, port)) is not None:
            return addresses
        known = self._known.get(host)
        if known is not None and self._clock() - known.at < _FRESH_S:
            return _with_port(known.infos, port)
        return _with_port(await self._asked(host, known), port)

    def forget(self, host: str) -> None:
        """Look the name up again next time, because nothing answers at its addresses any more."""
        if (known := self._known.get(host)) is not None:
            self._known[host] = _Known(known.infos, known.at - _FRESH_S)

    async def _asked(self, host: str, known: _Known | None) -> Sequence[AddressInfo]:
        """Return a new answer, or the old one if a new one does not come in time."""
        usable = known if known is not None and self._clock() - known.at < _STALE_S else None
        try:
            pending = self._pending.get(host) or self._begin(host)
            if usable is None:
                return await asyncio.shield(pending)
            async with asyncio.timeout(self._patience_s):
                return await asyncio.shield(pending)
        except TimeoutError:
            if usable is None:
                raise
            return usable.infos
        except socket.gaierror as exc:
            # Only the explicit answer "this name has no address" makes the older answer invalid.
            if usable is None or exc.errno in _NO_ADDRESS:
                raise
            return usable.infos

    def _begin(self, host: str) -> asyncio.Future[Sequence[AddressInfo]]:
        if self._busy >= self._threads:
            raise socket.gaierror(
                socket.EAI_AGAIN,
                f"{self._busy} other host names of {self._name} wait for the DNS server",
            )
        loop = asyncio.get_running_loop()
        pending: asyncio.Future[Sequence[AddressInfo]] = loop.create_future()
        # All waiting tasks may have given up by then, and then asyncio must not log the failure as unhandled.
        pending.add_done_callback(lambda done: done.cancelled() or done.exception())
        # A daemon, because a look-up cannot be cancelled, and the process must not wait for it at its end.
        thread = threading.Thread(
            target=self._work, args=(loop, host, pending), name=f"look up for {self._name}", daemon=True
        )
        thread.start()
        self._busy += 1
        self._pending[host] = pending
        return pending

    def _work(
        self, loop: asyncio.AbstractEventLoop, host: str, pending: asyncio.Future[Sequence[AddressInfo]]
    ) -> None:
        """Look up the name. This runs in a thread."""
        outcome: Sequence[AddressInfo] | OSError
        try:
            outcome = self._look_up(host) or socket.gaierror(socket.EAI_NONAME, "the name has no address")
        except OSError as exc:
            outcome = exc
        except ValueError:  # an IDNA label that is too long, a NUL
            outcome = socket.gaierror(socket.EAI_NONAME, "this cannot be a host name")
        with suppress(RuntimeError):  # the loop was closed meanwhile
            loop.call_soon_threadsafe(self._ended, host, pending, outcome)

    def _ended(
        self,
        host: str,
        pending: asyncio.Future[Sequence[AddressInfo]],
        outcome: Sequence[AddressInfo] | OSError,
    ) -> None:
        self._busy -= 1
        if self._pending.get(host) is pending:
            del self._pending[host]
        if isinstance(outcome, OSError):
            if outcome.errno in _NO_ADDRESS:
                self._known.pop(host, None)
            if not pending.done():
                pending.set_exception(outcome)
            return
        self._known.pop(host, None)
        self._known[host] = _Known(outcome, self._clock())
        while len(self._known) > _MOST_NAMES or self._cache_size().held > _MAX_BYTES:
            del self._known[next(iter(self._known))]
        if not pending.done():
            pending.set_result(outcome)

    def _cache_size(self) -> CacheSize:
        addresses = sum(len(known.infos) for known in self._known.values())
        return CacheSize(_NAME_BYTES * len(self._known) + _ADDRESS_BYTES * addresses, _MAX_BYTES)


def numeric(host: str, port: int, family: int = socket.AF_UNSPEC) -> Sequence[AddressInfo] | None:
    """Return the address if ``host`` is one, ``None`` if it is a name. Never blocks."""
    try:
        return socket.getaddrinfo(host, port, family, socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except (socket.gaierror, ValueError):
        return None


def _system(host: str) -> Sequence[AddressInfo]:
    return socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)


def _with_port(infos: Sequence[AddressInfo], port: int) -> Sequence[AddressInfo]:
    return [(*info[:4], (info[4][0], port, *info[4][2:])) for info in infos]
