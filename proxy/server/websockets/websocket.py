"""A client's connection after its upgrade to WebSocket (RFC 6455): whole messages in, whole messages out.

The protocol is that of ``websockets``, used without its I/O: its frames go over the connection that aiohttp's
parser has read the handshake from.  No extension is negotiated, so nothing compressed has to be unpacked.
"""

import asyncio
import contextlib
import logging
import time
from collections import deque
from typing import TYPE_CHECKING, Final

from proxy.errors import RequestError
from websockets.datastructures import Headers
from websockets.exceptions import InvalidState
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import Protocol, Side, State
from websockets.server import ServerProtocol

if TYPE_CHECKING:
    from proxy.server.serving.request import EdgeRequest

__all__ = ["CloseCode", "WebSocket"]

_SAYING: Final = frozenset({Opcode.TEXT, Opcode.BINARY, Opcode.CONT})
"""Frames that a message is made of."""

_MOST_UNREAD_BYTES: Final = 1 << 20
"""Of answers to pings and such that a client does not read; one that sends on is let go of."""

_MOST_REASON: Final = 123
"""Bytes of a reason for closing that a frame has room for."""

_CLOSING_S: Final = 2.0
"""How long a client may take to answer that the connection is closed."""


def _silent() -> logging.Logger:
    """A logger that writes nothing: what is sent is no business of a log."""
    return logging.Logger("websocket", logging.CRITICAL + 1)


class WebSocket:
    """One connection.  Raises :class:`~proxy.errors.RequestError` (400) for a handshake that is none.

    A message has ``max_message_bytes`` at most; a longer one ends the connection.  Of those that wait for
    :meth:`receive` there may be ``most_waiting``, of ``max_message_bytes`` in all: what is beyond is dropped,
    and :attr:`dropped` counts it.  ``first_byte_at`` is when it was opened, in monotonic seconds; ``sent``
    counts bytes.
    """

    def __init__(
        self, request: "EdgeRequest", *, max_message_bytes: int, most_waiting: int, headers: dict[str, str]
    ) -> None:
        """``headers`` go out with the answer to the handshake."""
        self._request = request
        self._max_bytes = max_message_bytes
        self._most_waiting = most_waiting
        self._protocol = Protocol(Side.SERVER, state=State.OPEN, max_size=max_message_bytes, logger=_silent())
        self._parts: list[bytes] = []
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._arrived = asyncio.Event()
        self._left = False
        self.dropped = 0
        self.first_byte_at = time.monotonic()
        self.sent = 0
        self._open(headers)

    def _open(self, headers: dict[str, str]) -> None:
        """Answer the handshake; from then on the connection is the protocol's."""
        request = self._request
        said = Headers()
        for name, value in request.headers.items():
            said[name] = value
        answer = ServerProtocol(logger=_silent()).accept(Request(request.raw_path, said))
        if answer.status_code != 101 or request.method != "GET":
            raise RequestError(
                400,
                "This is not a WebSocket handshake. Send GET with Connection: Upgrade, Upgrade: websocket, "
                "Sec-WebSocket-Version: 13 and one Sec-WebSocket-Key of 16 bytes in base64.",
                code="invalid_handshake",
                headers={"Connection": "close"},
            )
        for name, value in headers.items():
            answer.headers[name] = value
        if (transport := request.transport) is None:
            raise ConnectionResetError("the client has closed the connection")
        transport.write(answer.serialize())
        request.answer_begins()
        request.protocol.switch(self.feed)

    @property
    def completed(self) -> int:
        """The status of the handshake's answer, for whoever asks as of any other response."""
        return 101

    @property
    def closed(self) -> bool:
        """Whether nothing can be sent any more."""
        transport = self._request.transport
        return self._left or transport is None or transport.is_closing()

    def feed(self, data: bytes) -> None:
        """Take in what the client sent."""
        if self._left:
            return
        self._protocol.receive_data(data)
        for frame in self._protocol.events_received():
            if isinstance(frame, Frame) and frame.opcode in _SAYING:
                self._take(bytes(frame.data), whole=frame.fin)
        self._flush()
        transport = self._request.transport
        if transport is not None and transport.get_write_buffer_size() > _MOST_UNREAD_BYTES:
            # It sends on and takes none of the answers that the protocol asks for.
            transport.abort()

    def _take(self, data: bytes, *, whole: bool) -> None:
        if data or whole:
            self._parts.append(data)
        if not whole:
            return
        message, self._parts = b"".join(self._parts), []
        full = len(self._waiting) >= self._most_waiting
        if full or (self._waiting and self._waiting_bytes + len(message) > self._max_bytes):
            self.dropped += 1
        else:
            self._waiting.append(message)
            self._waiting_bytes += len(message)
        self._arrived.set()

    async def receive(self) -> bytes | None:
        """The next message.  ``None`` where something else is to be looked at: one was dropped, the client
        closes, or somebody called :meth:`wake`."""
        if not (self._waiting or self.dropped or self._left):
            self._arrived.clear()
            await self._arrived.wait()
        if not self._waiting:
            return None
        message = self._waiting.popleft()
        self._waiting_bytes -= len(message)
        return message

    def wake(self) -> None:
        """Let whoever waits for a message look whether there is another thing to do."""
        self._arrived.set()

    def send(self, text: bytes) -> int:
        """Send a message of text, in UTF-8; the bytes that are unsent.  Raises ``ConnectionResetError``."""
        transport = self._request.transport
        if self.closed or transport is None:
            raise ConnectionResetError("the client has closed the connection")
        try:
            self._protocol.send_text(text)
        except InvalidState as error:
            raise ConnectionResetError("the client has closed the connection") from error
        self._flush()
        return transport.get_write_buffer_size()

    def ping(self) -> None:
        """Let the client, and whatever stands between, know that the connection is in use."""
        if not self.closed:
            self._protocol.send_ping(b"")
            self._flush()

    async def close(self, code: CloseCode, reason: str = "") -> None:
        """End the connection: the client is told why, and has a moment to answer that."""
        if not self.closed:
            self._protocol.send_close(code, reason.encode()[:_MOST_REASON].decode("utf-8", "ignore"))
            self._flush()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CLOSING_S):
                    while not self._left:
                        self._arrived.clear()
                        await self._arrived.wait()
        if (transport := self._request.transport) is not None:
            # Who did not read until now would keep the connection for what is unsent.
            transport.abort() if transport.get_write_buffer_size() else transport.close()

    def _flush(self) -> None:
        """Send what the protocol wants to be sent, and end the connection where it wants that."""
        transport = self._request.transport
        for data in self._protocol.data_to_send():
            if data and transport is not None and not transport.is_closing():
                self.sent += len(data)
                transport.write(data)
            elif not data:
                self._left = True
                self._arrived.set()
                if transport is not None:
                    transport.close()
