"""Copy a response to a listener, which records parts of it."""

from collections.abc import Awaitable, Callable
from typing import Protocol

from proxy.http.headers import Headers
from proxy.http.rules import first
from proxy.http.secrets import Secrets
from proxy.relay.base import ClientStream


class WrappedStream:
    """A :class:`~proxy.relay.base.ClientStream` that delegates to another one.

    A subclass overrides the methods that it extends.
    """

    def __init__(self, client: ClientStream) -> None:
        self._client = client

    @property
    def started(self) -> bool:
        return self._client.started

    @property
    def stopped_by_server(self) -> bool:
        return self._client.stopped_by_server

    @property
    def origin(self) -> str:
        return self._client.origin

    def blank_out(self, secrets: Secrets | None) -> None:
        self._client.blank_out(secrets)

    def set_header(self, name: str, value: str) -> None:
        self._client.set_header(name, value)

    def start(self, status: int, headers: Headers) -> None:
        self._client.start(status, headers)

    def flush(self) -> None:
        self._client.flush()

    def push(self, data: bytes, last: bool = False) -> Awaitable[None] | None:
        return self._client.push(data, last)

    async def write(self, data: bytes) -> None:
        await self._client.write(data)

    def before_finish(self) -> Awaitable[None] | None:
        return self._client.before_finish()

    def finish(self) -> None:
        self._client.finish()

    def abort(self) -> None:
        self._client.abort()


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
