"""Wrap the streams of a server's transport: report their end, and drop floods of notifications."""

import asyncio
from collections.abc import Callable
from typing import Any, Final

import mcp_types as types
from mcp.shared.message import SessionMessage

from proxy.tools.mcp.host.stdio import Streams

__all__ = ["Watched"]

_NOTIFICATIONS_A_SECOND: Final = 100
_LIST_CHANGED: Final = "notifications/tools/list_changed"


class _Budget:
    """A limit of ``most`` events per second."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._clock = asyncio.get_running_loop().time
        self._since = self._clock()
        self._taken = 0

    def take(self) -> bool:
        """Count an event and return whether it is within the limit."""
        now = self._clock()
        if now - self._since >= 1:
            self._since, self._taken = now, 0
        self._taken += 1
        return self._taken <= self._most


class Watched:
    """The streams of a transport, with a signal when they end, which a session alone does not give.

    At most a hundred notifications of a server per second pass.  Those about changed tools are counted
    separately, so a flood of others cannot hide them.
    """

    def __init__(self, streams: Streams, lost: Callable[[], None]) -> None:
        read, write = streams
        self.ended = asyncio.Event()
        self._lost = lost
        self.streams: Streams = (_Watching(read, self.end), write)  # type: ignore[assignment]

    def end(self) -> None:
        """Report the end of the connection, or end it."""
        self._lost()
        self.ended.set()


class _Watching:
    """A stream to read from, which calls ``ended`` at its end."""

    def __init__(self, stream: Any, ended: Callable[[], None]) -> None:
        self._stream = stream
        self._ended = ended
        self._changes, self._others = (_Budget(_NOTIFICATIONS_A_SECOND) for _ in range(2))

    async def receive(self) -> Any:
        return await self._stream.receive()

    def __aiter__(self) -> "_Watching":
        return self

    async def __anext__(self) -> Any:
        try:
            while True:
                received = await self._stream.__anext__()
                if self._is_wanted(received):
                    return received
        except BaseException:  # However a stream ends, report its end and raise the reason to the reader.
            self._ended()
            raise

    def _is_wanted(self, received: Any) -> bool:
        message = received.message if isinstance(received, SessionMessage) else None
        if not isinstance(message, types.JSONRPCNotification):
            return True
        return (self._changes if message.method == _LIST_CHANGED else self._others).take()

    async def __aenter__(self) -> "_Watching":
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *exception: Any) -> Any:
        self._ended()
        return await self._stream.__aexit__(*exception)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
