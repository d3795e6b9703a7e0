"""Wrap the streams of a server's transport: report their end, answer its requests, bound what it sends."""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, Final

import anyio
import mcp_types as types
from mcp.shared.message import SessionMessage

from proxy.tools.mcp.host.bounds import TOO_MUCH, Budget, PastBounds, unasked_budget
from proxy.tools.mcp.host.stdio import Streams

__all__ = ["Watched"]

_NOTIFICATIONS_A_SECOND: Final = 100
_LIST_CHANGED: Final = "notifications/tools/list_changed"

_MAX_ANSWERS: Final = 16
"""The most answers that wait for a server; nothing more is read from it meanwhile."""

_TAKEN_S: Final = 10.0
"""The most seconds that an answer waits for its server."""

_MAX_ID: Final = 200


class Watched:
    """The streams of a transport, with a signal when they end, which a session alone does not give.

    At most a hundred notifications of a server per second pass. Those about changed tools are counted
    separately, so a flood of others cannot hide them. No capability is declared to a server, so of its
    requests only ``ping`` gets a result. They are answered here, because the SDK would start a task for each
    of them, without a limit.
    """

    def __init__(self, streams: Streams, lost: Callable[[PastBounds | None], None]) -> None:
        """``lost`` is called at the end, with the bound that ended the session if there was one."""
        read, self._write = streams
        self.ended = asyncio.Event()
        self._lost = lost
        self._answers: asyncio.Queue[types.JSONRPCMessage] = asyncio.Queue(_MAX_ANSWERS)
        self._answering: asyncio.Task[None] | None = None
        watching = _Watching(read, self._answers, self.end)
        self.streams: Streams = (watching, self._write)  # type: ignore[assignment]

    async def __aenter__(self) -> "Watched":
        self._answering = asyncio.create_task(self._answer())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._answering is not None:
            self._answering.cancel()
            await asyncio.wait({self._answering})

    def end(self, fault: PastBounds | None = None) -> None:
        """Report the end of the connection, or end it."""
        self._lost(fault)
        self.ended.set()

    async def _answer(self) -> None:
        """Send the answers to the server's requests, one after another."""
        with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            while True:
                answer = await self._answers.get()
                try:
                    async with asyncio.timeout(_TAKEN_S):
                        await self._write.send(SessionMessage(answer))
                except TimeoutError:
                    return self.end(PastBounds("the server sends requests and does not take the answers"))


class _Watching:
    """A stream to read from, which calls ``ended`` at its end."""

    def __init__(
        self,
        stream: Any,
        answers: "asyncio.Queue[types.JSONRPCMessage]",
        ended: Callable[[PastBounds | None], None],
    ) -> None:
        self._stream = stream
        self._answers = answers
        self._ended = ended
        self._changes, self._others = (Budget(_NOTIFICATIONS_A_SECOND) for _ in range(2))
        self._all = unasked_budget()

    async def receive(self) -> Any:
        return await self._stream.receive()

    def __aiter__(self) -> "_Watching":
        return self

    async def __anext__(self) -> Any:
        fault: PastBounds | None = None
        try:
            while True:
                received = await self._stream.__anext__()
                fault = received if isinstance(received, PastBounds) else self._past_bounds()
                if fault is not None:
                    raise StopAsyncIteration
                message = received.message if isinstance(received, SessionMessage) else None
                if isinstance(message, types.JSONRPCRequest):
                    await self._take_request(message)
                elif not isinstance(message, types.JSONRPCNotification) or self._is_wanted(message):
                    return received
        except BaseException:  # However a stream ends, report its end and raise the reason to the reader.
            self._ended(fault)
            raise

    def _past_bounds(self) -> PastBounds | None:
        return None if self._all.take() else PastBounds(TOO_MUCH)

    async def _take_request(self, request: types.JSONRPCRequest) -> None:
        """Queue the answer to a request; wait while too many are queued."""
        number = request.id
        if isinstance(number, str) and len(number) > _MAX_ID:
            return
        if request.method == "ping":
            await self._answers.put(types.JSONRPCResponse(jsonrpc="2.0", id=number, result={}))
        else:
            fault = types.ErrorData(code=types.METHOD_NOT_FOUND, message="Method not found")
            await self._answers.put(types.JSONRPCError(jsonrpc="2.0", id=number, error=fault))

    def _is_wanted(self, message: types.JSONRPCNotification) -> bool:
        return (self._changes if message.method == _LIST_CHANGED else self._others).take()

    async def __aenter__(self) -> "_Watching":
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *exception: Any) -> Any:
        self._ended(None)
        return await self._stream.__aexit__(*exception)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
