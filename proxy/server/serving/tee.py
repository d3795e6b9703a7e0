"""A response to a client that somebody listens to, for what is recorded of it."""

from collections.abc import Awaitable, Callable
from typing import Protocol

from proxy.http.headers import Headers
from proxy.http.rules import first
from proxy.relay.base import ClientStream
from proxy.server.serving.wrapped_stream import WrappedStream

__all__ = ["Listen", "Listener", "TeeStream"]


class Listener(Protocol):
    """Told what one client is answered, as it is answered."""

    def started(self, status: int, headers: Headers) -> None:
        """The head is settled."""
        ...

    def heard(self, data: bytes) -> None:
        """A piece of the body goes out."""
        ...

    def ended(self) -> None:
        """The body is whole.  May be told again."""
        ...


Listen = Callable[[bytes], Listener]
"""Told of a request's body before it is worked on; who listens to its answer."""


class TeeStream(WrappedStream):
    """A :class:`~proxy.relay.base.ClientStream` that is another one, with a listener."""

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
        self._listener.heard(data)
        self._left -= len(data)
        if last or (self._left == 0 and data):
            # A client may go as soon as it has this, and then nobody comes to the end.
            self._listener.ended()
        return self._client.push(data, last)

    async def write(self, data: bytes) -> None:
        self._listener.heard(data)
        self._left -= len(data)
        if self._left == 0 and data:
            self._listener.ended()
        await super().write(data)

    def finish(self) -> None:
        self._listener.ended()
        super().finish()
