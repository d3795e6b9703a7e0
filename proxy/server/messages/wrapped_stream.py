"""Base class for streams to a client that wrap another stream."""

from collections.abc import Awaitable

from proxy.http.headers import Headers
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
