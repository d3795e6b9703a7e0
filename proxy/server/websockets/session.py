"""Serve the WebSocket mode of ``/v1/responses``: each message is a request, and they are answered in order.

Every message passes the same stages as a request over HTTP, with the headers of the handshake: browser rules,
authentication, limits, tools, record. In addition, the connection remembers the responses that must not be
recorded.

Source: OpenAI's guide "WebSocket mode" and the SDK's ``responses_client_event``; Open Responses, "WebSocket
transport".
"""

import asyncio
import hashlib
import time
from collections import Counter
from functools import partial
from typing import Any, Final, cast

import orjson
from aiohttp import hdrs, web
from aiohttp.http import RawRequestMessage
from msgspec import Struct
from multidict import CIMultiDict, CIMultiDictProxy, istr

from proxy.base.errors import RequestError
from proxy.json.in_thread import LARGE_BYTES, in_thread
from proxy.relay.memory.local import LocalResponses
from proxy.rights.callers import Caller
from proxy.server.connections.connection import EdgeConnection
from proxy.server.connections.draining import Draining
from proxy.server.messages.errors import of_request_error
from proxy.server.messages.heads.head import Head
from proxy.server.messages.heads.known_heads import WholeBody
from proxy.server.messages.json_bodies import JsonBodies
from proxy.server.messages.request import EdgeRequest, WebSocketMessage
from proxy.server.messages.response import sent_response
from proxy.server.transport.websocket import CloseCode, WebSocket, handshake_answer
from proxy.server.websockets.stream import error_message
from proxy.telemetry.hooks import RequestFacts
from proxy.wires.responses.websocket import CreateRequest, create_request, lane_of

_IDEMPOTENCY_KEY: Final = istr("Idempotency-Key")
_HANDSHAKE_HEADERS: Final = (
    *(hdrs.UPGRADE, hdrs.CONNECTION, hdrs.SEC_WEBSOCKET_KEY, hdrs.SEC_WEBSOCKET_VERSION),
    *(hdrs.SEC_WEBSOCKET_EXTENSIONS, hdrs.SEC_WEBSOCKET_PROTOCOL, hdrs.CONTENT_LENGTH),
    *(hdrs.TRANSFER_ENCODING, hdrs.EXPECT, hdrs.ACCEPT, "x-request-id"),
)
"""Headers that concern the handshake, and not the requests that follow."""


class WebSocketBounds(Struct, frozen=True):
    """Limits of WebSocket connections.

    At most ``most`` connections may be open, and ``most_of_one`` of one caller. A connection ends after
    ``idle_s`` seconds without a message, and after ``lifetime_s`` seconds in any case. While one message is
    answered, ``most_waiting`` others may wait.
    """

    max_message_bytes: int
    max_json_values: int
    most: int
    most_of_one: int
    idle_s: float
    lifetime_s: float
    most_waiting: int = 8


class WebSockets:
    """The WebSocket connections of a process."""

    def __init__(self, bounds: WebSocketBounds, draining: Draining) -> None:
        self._bounds = bounds
        self._draining = draining
        self._bodies = JsonBodies(bounds.max_json_values)
        self._open: Counter[str] = Counter()

    async def serve(self, request: EdgeRequest, facts: RequestFacts, caller: Caller) -> web.StreamResponse:
        """Serve a connection until it ends.

        Raises :class:`RequestError`: 400 if the request is not a handshake, 426 if the operator
        has disabled WebSockets, 429 if too many connections are open.
        """
        name, bounds = caller.counted_as, self._bounds
        if not bounds.most:
            raise no_websocket_here()
        if self._open.total() >= bounds.most or self._open[name] >= bounds.most_of_one:
            raise RequestError(
                429,
                "Too many WebSocket connections are open. Close one, or use HTTP.",
                type="rate_limit_error",
                code="too_many_websockets",
                headers={"Retry-After": "1", "Connection": "close"},
            )
        head = request.head
        sent = {**request.page_headers, "x-request-id": facts.request_id, "Server": "toolrelay"}
        answer = handshake_answer(request.method, request.raw_path, request.headers, sent)
        if (transport := request.transport) is None:
            raise ConnectionResetError("the client has closed the connection")
        connection = cast(EdgeConnection, request.protocol)
        socket = WebSocket(
            connection, max_message_bytes=bounds.max_message_bytes, most_waiting=bounds.most_waiting
        )
        transport.write(answer)
        request.answer_begins()
        connection.switch(socket.feed)
        facts.client = socket
        self._open[name] += 1
        self._draining.watch(socket.wake)
        try:
            await _Session(request, head, caller, socket, bounds, self._draining, self._bodies).run()
        finally:
            self._draining.unwatch(socket.wake)
            self._open[name] -= 1
            if not self._open[name]:
                del self._open[name]
        return sent_response(101, keep_alive=False)


def no_websocket_here() -> RequestError:
    """Return the answer to a WebSocket handshake on a path that serves only HTTP."""
    return RequestError(
        426,
        "The proxy does not serve WebSockets. Use HTTP with server-sent events.",
        headers={"Connection": "close"},
    )


class _Session:
    """One connection, and the responses that it remembers."""

    def __init__(
        self,
        request: EdgeRequest,
        head: Head,
        caller: Caller,
        socket: WebSocket,
        bounds: WebSocketBounds,
        draining: Draining,
        bodies: JsonBodies,
    ) -> None:
        self._request = request
        self._handshake = head.message
        self._caller = caller
        self._bodies = bodies
        self._socket = socket
        self._bounds = bounds
        self._draining = draining
        self._local = LocalResponses()
        self._ends_at = time.monotonic() + bounds.lifetime_s
        self._head = self._head_of_messages("")

    async def run(self) -> None:
        """Answer messages until one side ends the connection."""
        socket = self._socket
        while not socket.closed:
            if self._draining.closing:
                await socket.close(CloseCode.SERVICE_RESTART, "The server is shutting down.")
                return
            left = self._ends_at - time.monotonic()
            if left <= 0:
                self._refuse(_too_old(self._bounds.lifetime_s))
                await socket.close(CloseCode.NORMAL_CLOSURE, "The connection has reached its time limit.")
                return
            idle = self._bounds.idle_s
            try:
                async with asyncio.timeout(min(left, idle)):
                    raw = await socket.receive()
            except TimeoutError:
                if idle < left:
                    await socket.close(CloseCode.NORMAL_CLOSURE, "No message came within the idle time.")
                    return
                # Timers may fire a little early.
                self._ends_at = 0.0
                continue
            while socket.dropped:
                socket.dropped -= 1
                self._refuse(_too_many(self._bounds.most_waiting))
            if raw is not None:
                await self._answer(raw)

    async def _answer(self, raw: bytes) -> None:
        """Answer one message."""
        lane = ""
        try:
            said = await self._read(raw)
            lane = lane_of(said)
            read = partial(create_request, said, raw, lane)
            frame = await in_thread(read) if len(raw) > LARGE_BYTES else read()
        except RequestError as error:
            self._refuse(error, lane)
            return
        message = WebSocketMessage(self._socket, self._local, frame.lane, frame.generates)
        request = self._message(frame, message)
        response = await cast(EdgeConnection, request.protocol).handle(request)
        if not response.prepared:
            message.failed = True
            self._say_error(response, frame.lane)
        if message.failed and frame.previous:
            # It is unknown how much of the failed request the model has read, so the client must start again.
            self._local.forget(frame.previous)

    async def _read(self, raw: bytes) -> dict[str, Any]:
        """Parse a message; raises :class:`RequestError` (400) if it is not a JSON object."""
        said = self._bodies.load_now(raw)
        if said is None:
            said = await self._bodies.load(raw, self._caller.counted_as, self._caller.parent_counted_as)
        return said

    def _message(self, frame: CreateRequest, message: WebSocketMessage) -> EdgeRequest:
        """Make a request from a message."""
        head = self._head
        if _IDEMPOTENCY_KEY in head.headers:
            # All messages share the handshake's key, so a digest of the body is added to make each key
            # unique.
            head = self._head_of_messages(hashlib.blake2b(frame.body, digest_size=16).hexdigest())
        connection, task = self._request.protocol, self._request.task
        request = EdgeRequest(head, WholeBody(frame.body), connection, task, len(frame.body))
        request.websocket = message
        return request

    def _head_of_messages(self, digest: str) -> Head:
        """Return the handshake's head, changed as if the client had sent each message in a POST with it."""
        headers = CIMultiDict(self._handshake.headers)
        for name in _HANDSHAKE_HEADERS:
            headers.popall(name, None)
        headers[hdrs.CONTENT_TYPE] = "application/json"
        if digest:
            headers[_IDEMPOTENCY_KEY] = f"{headers[_IDEMPOTENCY_KEY]}-{digest}"
        message: RawRequestMessage = self._handshake._replace(
            method="POST",
            headers=CIMultiDictProxy(headers),
            raw_headers=(),
            should_close=False,
            compression=None,
            upgrade=False,
            chunked=False,
        )
        return Head(message)

    def _refuse(self, error: RequestError, lane: str = "") -> None:
        self._say_error(of_request_error(error), lane)

    def _say_error(self, response: web.StreamResponse, lane: str) -> None:
        """Send an error, which is not sent over HTTP, as a message."""
        if self._socket.closed:
            return
        body = response.body if isinstance(response, web.Response) else b""
        said = body if isinstance(body, bytes) else b""
        data = error_message(response.status, said, [*response.headers.items()])
        if lane:
            data = data[:-1] + b',"stream_id":' + orjson.dumps(lane) + b"}"
        self._socket.send(data)


def _too_old(lifetime_s: float) -> RequestError:
    return RequestError(
        400,
        f"The connection has been open for {lifetime_s:g} s. Open another one.",
        code="websocket_connection_limit_reached",
    )


def _too_many(most: int) -> RequestError:
    return RequestError(
        429,
        f"At most {most} messages may wait while the proxy answers one.",
        type="rate_limit_error",
        code="too_many_messages",
    )
