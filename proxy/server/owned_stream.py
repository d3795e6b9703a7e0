"""A response to a client whose id is noted as the client's own, while its bytes pass untouched."""

from collections.abc import Awaitable, Callable
from typing import Final

import orjson

from proxy.errors import WireError
from proxy.json_size import count_values
from proxy.server.client_stream import HttpClientStream
from proxy.server.edge_request import EdgeRequest
from proxy.upstreams.base import Headers
from proxy.wires.sse import SSEParser

__all__ = ["OwnedClientStream", "client_stream"]

_MOST_VALUES: Final = 1_000_000
_MOST_EVENTS: Final = 256
"""Events before the one that says it: nobody sends as many."""
_MAX_BYTES: Final = 8 << 20
"""How much of a response is read for its id; it is in the first event, or in the object."""


class OwnedClientStream(HttpClientStream):
    """``own`` is called once with the id of the response: before the event that says it goes out, or
    before the end of an object does."""

    def __init__(
        self,
        request: EdgeRequest,
        headers: dict[str, str],
        own: Callable[[str], None],
        *,
        last: bool = False,
    ) -> None:
        super().__init__(request, headers, last=last)
        self._own = own
        self._events: SSEParser | None = None
        self._seen = bytearray()
        self._size = 0
        self._length = ""
        self._again = 0
        self._looking = False
        self._events_left = _MOST_EVENTS

    def start(self, status: int, headers: Headers) -> None:
        self._looking = status < 300
        kind = next((value for name, value in headers if name.lower() == "content-type"), "")
        self._events = SSEParser() if kind.lower().startswith("text/event-stream") else None
        self._length = next((value for name, value in headers if name.lower() == "content-length"), "")
        super().start(status, headers)

    def _push(self, data: bytes, last: bool) -> Awaitable[None] | None:
        if self._looking:
            self._look(data)
        wait = super()._push(data, last)
        # While the id is looked for, each piece has to come by here.
        self._flows = self._flows and not self._looking
        return wait

    def _look(self, data: bytes) -> None:
        self._size += len(data)
        if self._size > _MAX_BYTES:
            self._stop()
            return
        if self._events is not None:
            try:
                self._events.take(data)
                while self._looking and (event := self._events.next()) is not None:
                    self._events_left -= 1
                    self._read(event.data)
                    if not self._events_left:
                        self._stop()
            except WireError:
                self._stop()
            return
        self._seen += data
        # Every piece may end as an object does: to read all of it each time would cost its square.
        if str(self._size) == self._length or (self._size >= self._again and data.rstrip().endswith(b"}")):
            self._again = 2 * self._size
            self._read(bytes(self._seen))

    def finish(self) -> None:
        if self._looking and self._seen:
            self._read(bytes(self._seen))
        super().finish()

    def _read(self, text: bytes) -> None:
        if count_values(text, _MOST_VALUES) > _MOST_VALUES:
            return
        try:
            said = orjson.loads(text)
        except orjson.JSONDecodeError:
            return
        if isinstance(said, dict):
            response = said.get("response", said)
            found = response.get("id") if isinstance(response, dict) else None
            if isinstance(found, str) and found:
                self._stop()
                self._own(found)

    def _stop(self) -> None:
        self._looking = False
        self._seen.clear()
        self._events = None


def client_stream(
    request: EdgeRequest, headers: dict[str, str], own: Callable[[str], None] | None, *, last: bool
) -> HttpClientStream:
    """A response to a client; one that is read for its id where somebody wants to ``own`` that."""
    if own is None:
        return HttpClientStream(request, headers, last=last)
    return OwnedClientStream(request, headers, own, last=last)
