"""Send a response as messages of a WebSocket: one for each event, or an error if it has no events.

Source: OpenAI's guide "WebSocket mode" and the SDK's ``responses_server_event``: the events are those of the
stream over HTTP, without an end mark; an error has ``status`` beside it, and ``stream_id`` names the lane.
"""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

import orjson
from aiohttp import web

from proxy.base.errors import UpstreamBroken
from proxy.http.headers import Headers
from proxy.http.rules import media_type
from proxy.http.secrets import Secrets
from proxy.json.in_thread import LARGE_EVENT_BYTES
from proxy.server.messages.own_address import own_origin
from proxy.server.messages.request import EdgeRequest, WebSocketMessage
from proxy.server.messages.response import sent_response
from proxy.server.transport.websocket import WebSocket
from proxy.wires.dialect import Framing
from proxy.wires.stream.sse import SSEEvent, SSEParser

StoreOwner = Callable[[str, Callable[[bool], None]], None]
"""Stores the owner of the response with this id; calls the callback with whether that was committed."""

WaitForOwners = Callable[[], Awaitable[None]]
"""Waits, for a limited time, until all owners so far are committed."""

_MAX_UNREAD_BYTES: Final = 64 * 1024
_MAX_BODY_BYTES: Final = 1024 * 1024
"""The most bytes to keep of a body that is not an event stream: an error, which becomes one message."""

_EVENTS_A_TURN: Final = 128
"""The most events to send in one turn of the event loop."""

_ENDS: Final = frozenset({"response.completed", "response.incomplete", "response.failed"})
_TYPE: Final = re.compile(rb'\A\s*\{\s*"type"\s*:\s*"([a-z_.]{1,80})"')
_REPEATED_HEADERS: Final = frozenset({"retry-after", "retry-after-ms", "x-request-id", "x-should-retry"})
"""Headers that an error message repeats, because a message has no headers."""

_BROKEN: Final = (
    b'{"error":{"type":"upstream_error","code":"upstream_broken","message":"The response broke."}}'
)


class WebSocketStream:
    """A :class:`~proxy.relay.base.ClientStream` that answers one message.

    ``store_owner`` is called once with the id of the response. ``wait_for_owners`` waits until the owner is
    committed; the last event is sent only then.
    """

    def __init__(
        self,
        request: EdgeRequest,
        message: WebSocketMessage,
        framing: Framing,
        store_owner: StoreOwner | None = None,
        wait_for_owners: WaitForOwners | None = None,
    ) -> None:
        self._request = request
        self._message = message
        self._framing = framing
        self._store_owner = store_owner
        self._wait_for_owners = wait_for_owners
        self._pending = False
        self._secrets: Secrets | None = None
        self._status = 0
        self._headers: Headers = ()
        self._events: SSEParser | None = None
        self._body = bytearray()
        self._error = b""
        self._ended = False
        self._unsent = 0
        self.first_byte_at = 0.0
        self.sent = 0

    @property
    def _socket(self) -> WebSocket:
        return self._message.socket

    @property
    def started(self) -> bool:
        return self._status != 0

    @property
    def stopped_by_server(self) -> bool:
        return self._request.stopped_by_server

    @property
    def response(self) -> web.StreamResponse:
        """The response that was sent, in aiohttp's form."""
        return sent_response(self._status, keep_alive=True)

    @property
    def completed(self) -> int:
        """The status once the whole response has been sent, else 0."""
        return self._status if self._ended else 0

    @property
    def origin(self) -> str:
        return own_origin(self._request.head)

    def blank_out(self, secrets: Secrets | None) -> None:
        self._secrets = secrets

    def set_header(self, name: str, value: str) -> None:
        """Do nothing: a message has no headers, and the record holds what they would contain."""

    def start(self, status: int, headers: Headers) -> None:
        self._status, self._headers = status, headers
        if status < 300 and media_type(headers) == self._framing.content_type:
            self._events = SSEParser()
        self._request.answer_begins()

    def flush(self) -> None:
        """Do nothing: there is no buffer."""

    def push(self, data: bytes, last: bool = False) -> Awaitable[None] | None:
        if self._secrets is not None:
            data = self._secrets.blanked(data)
        if self._events is None:
            # A longer error keeps its status but loses its text, because the cut text is not JSON.
            self._body += data[: _MAX_BODY_BYTES - len(self._body)]
            return None
        self._events.take(data)
        wait = self._send_events(self._events)
        return None if wait is None else self._send_rest(wait, self._events)

    def _send_events(self, events: SSEParser) -> Awaitable[None] | None:
        """Send a few events; return what must be awaited before the next ones, ``None`` if none is left.

        An upstream's read may hold thousands of events or comments; the others have their turn in between.
        """
        for _ in range(_EVENTS_A_TURN):
            if (event := events.next()) is None:
                return self._drained()
            if (wait := self._take(event)) is not None:
                return wait
        return self._drained() or asyncio.sleep(0)

    async def _send_rest(self, wait: Awaitable[None] | None, events: SSEParser) -> None:
        while wait is not None:
            await wait
            wait = self._send_events(events)

    async def write(self, data: bytes) -> None:
        if (wait := self.push(data)) is not None:
            await wait

    def before_finish(self) -> Awaitable[None] | None:
        return None

    def finish(self) -> None:
        if self._events is None:
            self._fail(bytes(self._body))
        elif not self._ended:
            # The stream ended without a final event, perhaps after an error from the upstream.
            self._fail(self._error or _BROKEN)
        self._ended = True

    def abort(self) -> None:
        if not self._ended and not self._socket.closed:
            self._fail(self._error or _BROKEN)
        self._ended = True

    def _take(self, event: SSEEvent) -> Awaitable[None] | None:
        """Send an event; return what must be awaited before the next one, or ``None``."""
        if not event.data:
            self._socket.ping()
            return None
        if event.is_end_mark or self._ended:
            return None
        name = _name_of(event)
        if name is None:
            raise self._broken()
        if name == "error":
            # ``response.failed`` follows with the same error. If it does not, this is sent at the end.
            self._error = event.data
            return None
        if name == "response.created" and self._store_owner is not None:
            self._read_id(event.data)
        if name not in _ENDS:
            self._send(event.data)
            return None
        self._ended = True
        self._message.failed = name == "response.failed"
        if self._pending and self._wait_for_owners is not None:
            return self._send_last(event.data, self._wait_for_owners)
        self._send(event.data)
        return None

    async def _send_last(self, data: bytes, wait_for_owners: WaitForOwners) -> None:
        await wait_for_owners()
        self._send(data)

    def _read_id(self, data: bytes) -> None:
        """Read the response's id from its first event, and store its owner."""
        try:
            response = orjson.loads(data).get("response")
        except orjson.JSONDecodeError:
            raise self._broken() from None
        found = response.get("id") if isinstance(response, dict) else None
        store_owner, self._store_owner = self._store_owner, None
        if store_owner is not None and isinstance(found, str) and found:
            self._pending = self._wait_for_owners is not None
            store_owner(found, self._owner_stored)

    def _owner_stored(self, committed: bool) -> None:
        self._pending = False

    def _broken(self) -> UpstreamBroken:
        """Return the error for an event that is no message, and drop what came behind it: no later event may
        make this response look complete."""
        self._events = SSEParser()
        return UpstreamBroken("the upstream sent an event that is not a JSON object")

    def _fail(self, body: bytes) -> None:
        """Send an error in place of the response or of its rest."""
        self._message.failed = True
        status = self._status if self._status >= 400 else 502
        self._send(error_message(status, body, self._headers))

    def _send(self, data: bytes) -> None:
        if not self.first_byte_at:
            self.first_byte_at = time.monotonic()
        if self._message.lane:
            rest = data.rstrip()[:-1].rstrip()
            comma = b"" if rest.endswith(b"{") else b","
            data = rest + comma + b'"stream_id":' + orjson.dumps(self._message.lane) + b"}"
        self.sent += len(data)
        self._unsent = self._socket.send(data)

    def _drained(self) -> Awaitable[None] | None:
        if self._unsent <= _MAX_UNREAD_BYTES:
            return None
        self._unsent = 0
        return self._request.writer.drain()


def _name_of(event: SSEEvent) -> str | None:
    """Return the type of an event, which some servers write only into the data; ``None`` if it is no message.

    Over HTTP such an event passes as it came. Here, a client that cannot read one message gives up the
    connection, with all responses to come.
    """
    data, name = event.data, event.event.decode("ascii", "replace")
    if not name and (found := _TYPE.match(data)) is not None:
        name = found[1].decode()
    if name and len(data) > LARGE_EVENT_BYTES:
        # Parsing it would take too long.
        return name if _is_framed(data) else None
    try:
        said = orjson.loads(data)
    except orjson.JSONDecodeError:
        return None
    return (name or str(said.get("type", ""))) if isinstance(said, dict) else None


def _is_framed(data: bytes) -> bool:
    """Return whether a large event may be a JSON object: text in UTF-8, between braces."""
    data = data.strip()
    if not (data.startswith(b"{") and data.endswith(b"}")):
        return False
    try:
        return data.isascii() or bool(data.decode())
    except UnicodeDecodeError:
        return False


def error_message(status: int, body: bytes, headers: Headers = ()) -> bytes:
    """Return the message for an HTTP response that is an error with this status and body."""
    try:
        said: Any = orjson.loads(body)
    except orjson.JSONDecodeError:
        said = None
    error = said.get("error") if isinstance(said, dict) else None
    if not isinstance(error, dict):
        error = {"type": "upstream_error", "code": None, "message": "The upstream answered with an error."}
    told = {name.lower(): value for name, value in headers if name.lower() in _REPEATED_HEADERS}
    whole = {"param": None, **error, **({"headers": told} if told else {})}
    return orjson.dumps({"type": "error", "status": status, "error": whole})
