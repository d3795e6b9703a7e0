"""A response in which originals stand again in place of the placeholders that hooks have put into its
request."""

from collections.abc import Awaitable

from proxy.hooks.placeholders import Placeholders
from proxy.http.headers import Headers
from proxy.http.rules import media_type
from proxy.relay.base import ClientStream
from proxy.server.messages.tee import WrappedStream
from proxy.wires.dialect import Dialect
from proxy.wires.stream.restoring import Restorer


class RestoredStream(WrappedStream):
    """A :class:`~proxy.relay.base.ClientStream` that restores what it sends to another one.

    Events of a stream leave as soon as they hold no beginning of a placeholder; any other body leaves whole.
    """

    def __init__(
        self, client: ClientStream, dialect: Dialect, originals: Placeholders, *, json_answer: bool = False
    ) -> None:
        super().__init__(client)
        self._originals = originals
        self._restorer = Restorer(dialect, originals, json_answer=json_answer)
        self._content_type = dialect.framing.content_type
        self._body: list[bytes] = []
        self._head: tuple[int, Headers] | None = None

    @property
    def started(self) -> bool:
        return self._head is not None or super().started

    def start(self, status: int, headers: Headers) -> None:
        if media_type(headers) == self._content_type:
            super().start(status, headers)
            return
        # The length of the body is known when all of it is there.
        self._head = status, [pair for pair in headers if pair[0].lower() != "content-length"]

    def push(self, data: bytes, last: bool = False) -> Awaitable[None] | None:
        if self._head is not None:
            self._body.append(data)
            return self._push_whole() if last else None
        data = self._restorer.feed(data) + (self._restorer.close() if last else b"")
        return super().push(data, last) if data else None

    async def write(self, data: bytes) -> None:
        if (wait := self.push(data)) is not None:
            await wait

    def _push_whole(self) -> Awaitable[None] | None:
        if self._head is None:
            return None
        (status, headers), self._head = self._head, None
        body = self._restorer.whole(b"".join(self._body))
        super().start(status, [*headers, ("Content-Length", str(len(body)))])
        return super().push(body, True)

    def before_finish(self) -> Awaitable[None] | None:
        wait = self._push_whole() if self._head is not None else self.push(b"", last=True)
        return super().before_finish() if wait is None else self._settled(wait)

    async def _settled(self, wait: Awaitable[None]) -> None:
        await wait
        if (more := super().before_finish()) is not None:
            await more
