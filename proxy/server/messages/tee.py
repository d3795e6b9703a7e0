"""Copy a response to a listener, which records parts of it."""

from collections.abc import Awaitable, Callable
from typing import Protocol

from proxy.http.headers import Headers
from proxy.http.rules import first
from proxy.relay.base import ClientStream
from proxy.server.messages.wrapped_stream import WrappedStream


class Listener(Protocol):
    """Receives a copy of one response while the client gets it."""

    def started(self, status: int, headers: Headers) -> None:
        """Receive the head of the response."""

    def data_sent(self, data: bytes) -> None:
        """Receive a piece of the body that the client gets."""

    def ended(self) -> None:
        """Note that the body is complete; may be called more than once."""


Listen = Callable[[str, bytes], Listener]
"""Returns the listener for the response to a request, from the request's path below the prefix of its dialect
and from its body, before the proxy handles it."""


class TeeStream(WrappedStream):
    """A :class:`~proxy.relay.base.ClientStream` that wraps another one and copies it to a listener."""

    def __init__(self, client: ClientStream, listener: Listener) -> None:
        super().__init__(client)
        self._listener = listener
        self._left = -1

    def start(self, status: int, headers: Headers) -> None:
        self._listener.started(status, headers)
        said = first(headers, "content-length")
        self._left = int(said) if said.isdecimal() else -1
        super().start(status, headers)

    def push(self, data: bytes, last: bool = False) -> Awaitable[None] | None:
        self._listener.data_sent(data)
        self._left -= len(data)
        if last or (self._left == 0 and data):
            # A client may leave as soon as it has these bytes; then `finish` is not called.
            self._listener.ended()
        return self._client.push(data, last)

    async def write(self, data: bytes) -> None:
        self._listener.data_sent(data)
        self._left -= len(data)
        if self._left == 0 and data:
            self._listener.ended()
        await super().write(data)

    def finish(self) -> None:
        self._listener.ended()
        super().finish()
