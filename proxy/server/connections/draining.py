"""Stop a process without losing its open requests.

*Leaving*: ``/readyz`` reports that the server is not ready, but all requests are served. *Refusing*: new
requests get 503, open ones continue. *Cut*: open requests are ended in a way that their clients can see. A
process that is being replaced (*retiring*) refuses nothing, and ends each connection with its next response.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from proxy.base.errors import RequestError
from proxy.server.messages.request import EdgeRequest


class Draining:
    """The open requests of this process, and how it treats new ones."""

    def __init__(self) -> None:
        self.leaving = False
        self.refusing = False
        self.closing = False
        self.hurried = asyncio.Event()
        self._open: dict[asyncio.Task[None], EdgeRequest] = {}
        self._idle: asyncio.Event | None = None
        self._watching: set[Callable[[], None]] = set()

    @property
    def open(self) -> int:
        """The number of open requests."""
        return len(self._open)

    def retire(self) -> None:
        """Keep serving, but end each connection with its next response.

        Other processes keep serving the port, so ``/readyz`` still reports that it is ready.
        """
        self._close()

    def refuse(self) -> None:
        """Refuse new requests."""
        self.leaving = self.refusing = True
        self._close()

    def _close(self) -> None:
        self.closing = True
        for tell in tuple(self._watching):
            tell()

    def watch(self, tell: Callable[[], None]) -> None:
        """Call ``tell`` when connections must end, for a connection that waits for its client and ends by
        itself."""
        self._watching.add(tell)

    def unwatch(self, tell: Callable[[], None]) -> None:
        self._watching.discard(tell)

    def check(self) -> None:
        """Raise :class:`~proxy.base.errors.RequestError` (503) once new requests are refused."""
        if self.refusing:
            raise self._refusal()

    def begin(self, request: EdgeRequest) -> None:
        """Count a request as open until :meth:`end`."""
        self._open[request.task] = request

    def end(self, request: EdgeRequest) -> None:
        """Count a request as ended."""
        del self._open[request.task]
        if self._idle is not None and not self._open:
            self._idle.set()

    async def idle(self) -> None:
        """Return when no request is open."""
        while self._open:
            if self._idle is None or self._idle.is_set():
                self._idle = asyncio.Event()
            await self._idle.wait()

    def cut(self) -> None:
        """Cancel the task of each open request; the task sends its client an error if it still can."""
        for task, request in self._open.items():
            request.stopped_by_server = True
            task.cancel()

    def cut_error(self, request: EdgeRequest) -> RequestError | None:
        """Return the error for a client whose request was cut before its response began.

        Returns ``None`` if the request was cancelled because its client left.
        """
        if not request.stopped_by_server or request.transport is None:
            return None
        request.task.uncancel()
        return self._refusal()

    @staticmethod
    def _refusal() -> RequestError:
        return RequestError(
            503,
            "The server is shutting down.",
            type="server_error",
            code="draining",
            headers={"Retry-After": "1", "Connection": "close"},
        )


async def wait_unless_hurried(work: Coroutine[Any, Any, Any], hurried: asyncio.Event | None) -> bool:
    """Wait until ``work`` ends; cancel it once ``hurried`` is set. Return whether it ended by itself."""
    task = asyncio.ensure_future(work)
    haste = asyncio.ensure_future((hurried or asyncio.Event()).wait())
    try:
        await asyncio.wait({task, haste}, return_when=asyncio.FIRST_COMPLETED)
        return task.done()
    finally:
        haste.cancel()
        task.cancel()  # Changes nothing once it is done.
