"""Handle a client's connection after its upgrade to WebSocket (RFC 6455): it receives and sends whole
messages.

The protocol is that of ``websockets``, used without its I/O. Its frames use the connection on which
aiohttp's parser read the handshake. No extension is negotiated, so nothing must be decompressed.

The bytes that arrive are divided into parts of a few frames, so that one client's frames do not stop the
others.
"""

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Mapping
from typing import Final

from websockets.datastructures import Headers
from websockets.exceptions import InvalidState
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import Protocol, Side, State
from websockets.server import ServerProtocol

from proxy.base.errors import RequestError
from proxy.server.transport.aiohttp_seam import AiohttpConnection

_MASKED: Final = 0x80
_MASK_BYTES: Final = 4
_LENGTH_BYTES: Final = {126: 2, 127: 8}
"""How many bytes of an extended length follow, by the length in the second byte (RFC 6455, 5.2)."""


class FrameCutter:
    """Holds received bytes, and gives them out in parts of at most so many frames.

    It reads only the lengths of frames; whoever gets the parts checks everything else.
    """

    def __init__(self) -> None:
        self._held = bytearray()
        self._left = 0
        """How many bytes of the last frame that was begun are still to be given out."""

    def __bool__(self) -> bool:
        """Whether any bytes are held."""
        return bool(self._held)

    def take(self, data: bytes) -> None:
        """Add bytes that came."""
        self._held += data

    def next(self, most: int) -> bytes:
        """Return and remove the held bytes up to the end of the frame number ``most``.

        A frame whose payload is incomplete is begun, one whose head is incomplete stays.
        """
        held, size, frames = self._held, len(self._held), 0
        at = self._left
        while at < size and frames < most and (frame := _frame_bytes(held, at)):
            at += frame
            frames += 1
        end = min(at, size)
        self._left = at - end
        part = bytes(memoryview(held)[:end]) if end < size else bytes(held)
        del held[:end]
        return part


def _frame_bytes(held: bytearray, at: int) -> int:
    """Return the size of the frame that begins at ``at``; 0 if its head is incomplete."""
    if at + 2 > len(held):
        return 0
    second = held[at + 1]
    length = second & ~_MASKED
    extended = _LENGTH_BYTES.get(length, 0)
    head = 2 + extended + (_MASK_BYTES if second & _MASKED else 0)
    if at + head > len(held):
        return 0
    return head + (int.from_bytes(held[at + 2 : at + 2 + extended], "big") if extended else length)


__all__ = ["CloseCode", "WebSocket", "handshake_answer"]

_DATA_OPCODES: Final = frozenset({Opcode.TEXT, Opcode.BINARY, Opcode.CONT})
"""The frames that make up a message."""

_FRAMES_A_TURN: Final = 16
"""The most frames to process in one turn of the event loop: each takes some 30 µs, and an error in answer to
a message some 100 µs more."""

_SMALL_BYTES: Final = 1024
"""A fragment of fewer bytes is small, as are all control frames and the end of each message."""

_MOST_SMALL: Final = 1000
_SMALL_A_SECOND: Final = 100
"""How many small frames a client may send at once, and how many more in each second; one that exceeds this
is disconnected. This bounds pings, messages that make no sense, and the fragments of a message."""

_PING_EVERY_S: Final = 1.0
_MOST_UNREAD_BYTES: Final = 1 << 20
"""The most unread bytes of answers to control frames; a client that exceeds this is disconnected."""

_MOST_REASON: Final = 123
"""The most bytes of a reason in a close frame."""

_CLOSING_S: Final = 2.0
"""Seconds that a client may take to answer a close frame."""


def _null_logger() -> logging.Logger:
    """Return a logger that writes nothing, so that no message is logged."""
    return logging.Logger("websocket", logging.CRITICAL + 1)


def handshake_answer(method: str, path: str, sent: Mapping[str, str], headers: Mapping[str, str]) -> bytes:
    """Return the answer to a handshake, with ``headers``; raise :class:`RequestError` (400) for any other
    request."""
    said = Headers()
    for name, value in sent.items():
        said[name] = value
    answer = ServerProtocol(logger=_null_logger()).accept(Request(path, said))
    if answer.status_code != 101 or method != "GET":
        raise RequestError(
            400,
            "This is not a WebSocket handshake. Send GET with Connection: Upgrade, Upgrade: websocket, "
            "Sec-WebSocket-Version: 13 and one Sec-WebSocket-Key of 16 bytes in base64.",
            code="invalid_handshake",
            headers={"Connection": "close"},
        )
    for name, value in headers.items():
        answer.headers[name] = value
    return answer.serialize()


class WebSocket:
    """One WebSocket connection.

    A message has at most ``max_message_bytes`` bytes; a longer one ends the connection. At most
    ``most_waiting`` messages may wait for :meth:`receive`, with ``max_message_bytes`` bytes in all. Further
    messages are dropped and counted in :attr:`dropped`. ``first_byte_at`` is when the connection was opened,
    in monotonic seconds; ``sent`` counts bytes.
    """

    def __init__(self, connection: AiohttpConnection, *, max_message_bytes: int, most_waiting: int) -> None:
        """Use a connection whose handshake :func:`handshake_answer` has accepted."""
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._max_bytes = max_message_bytes
        self._most_waiting = most_waiting
        self._protocol = Protocol(
            Side.SERVER, state=State.OPEN, max_size=max_message_bytes, logger=_null_logger()
        )
        self._frames = FrameCutter()
        self._turn: asyncio.Handle | None = None
        """The next turn of the loop, if bytes wait for it; the client's further bytes are not read until
        then."""
        self._small_left = float(_MOST_SMALL)
        self._counted_at = self._loop.time()
        self._next_ping_at = 0.0
        self._message = bytearray()
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._arrived = asyncio.Event()
        self._ended = False
        self.dropped = 0
        self.first_byte_at = time.monotonic()
        self.sent = 0

    @property
    def completed(self) -> int:
        """The status of the handshake's answer; access logs read it as for any other response."""
        return 101

    @property
    def closed(self) -> bool:
        """Whether nothing more can be sent."""
        transport = self._connection.transport
        return self._ended or transport is None or transport.is_closing()

    def feed(self, data: bytes) -> None:
        """Process bytes from the client: a few frames now, the rest in later turns of the loop."""
        self._frames.take(data)
        if self._turn is None:
            self._read_frames()

    def _read_frames(self) -> None:
        """Process a few frames; if more may wait, pause reading and go on in the next turn of the loop."""
        self._turn = None
        if self._ended:
            return
        part = self._frames.next(_FRAMES_A_TURN)
        self._protocol.receive_data(part)
        for event in self._protocol.events_received():
            if isinstance(event, Frame) and not self._exceeds(event) and event.opcode in _DATA_OPCODES:
                self._take(event)
        self._flush()
        transport = self._connection.transport
        if transport is None or transport.is_closing():
            return
        if transport.get_write_buffer_size() > _MOST_UNREAD_BYTES:
            # The client keeps sending, and reads none of the protocol's answers.
            transport.abort()
        elif part and self._frames:
            transport.pause_reading()
            self._turn = self._loop.call_soon(self._read_frames)
        elif not transport.is_reading():
            transport.resume_reading()

    def _exceeds(self, frame: Frame) -> bool:
        """Count a frame, and end the connection if it has sent too many small ones.

        A small frame costs the proxy as much as a large one, and a message of them would have no end.
        """
        if not frame.fin and len(frame.data) >= _SMALL_BYTES:
            return False
        self._small_left -= 1
        if self._small_left >= 0:
            return False
        now = self._loop.time()
        earned = (now - self._counted_at) * _SMALL_A_SECOND
        self._counted_at = now
        self._small_left = min(self._small_left + earned, _MOST_SMALL)
        if self._small_left >= 0:
            return False
        self._protocol.fail(
            CloseCode.POLICY_VIOLATION, f"More than {_SMALL_A_SECOND} small frames or messages a second."
        )
        return True

    def _take(self, frame: Frame) -> None:
        """Add a data frame to its message."""
        if frame.fin and not self._message:
            message = bytes(frame.data)
        else:
            self._message += frame.data
            if not frame.fin:
                return
            message, self._message = bytes(self._message), bytearray()
        full = len(self._waiting) >= self._most_waiting
        if full or (self._waiting and self._waiting_bytes + len(message) > self._max_bytes):
            self.dropped += 1
        else:
            self._waiting.append(message)
            self._waiting_bytes += len(message)
        self._arrived.set()

    async def receive(self) -> bytes | None:
        """Return the next message.

        Returns ``None`` if the caller must check its state: a message was dropped, the client closes the
        connection, or :meth:`wake` was called.
        """
        if not (self._waiting or self.dropped or self._ended):
            self._arrived.clear()
            await self._arrived.wait()
        if not self._waiting:
            return None
        message = self._waiting.popleft()
        self._waiting_bytes -= len(message)
        return message

    def wake(self) -> None:
        """Wake the task that waits for a message, so that it checks its state."""
        self._arrived.set()

    def send(self, text: bytes) -> int:
        """Send a text message, in UTF-8; return the number of unsent bytes. Raises
        ``ConnectionResetError``."""
        transport = self._connection.transport
        if self.closed or transport is None:
            raise ConnectionResetError("the client has closed the connection")
        try:
            self._protocol.send_text(text)
        except InvalidState as error:
            raise ConnectionResetError("the client has closed the connection") from error
        self._flush()
        return transport.get_write_buffer_size()

    def ping(self) -> None:
        """Send a ping, so that the client and proxies between see that the connection is in use.

        Do nothing if one was sent in the last second: an upstream decides how often, and the client answers
        each one.
        """
        now = self._loop.time()
        if not self.closed and now >= self._next_ping_at:
            self._next_ping_at = now + _PING_EVERY_S
            self._protocol.send_ping(b"")
            self._flush()

    async def close(self, code: CloseCode, reason: str = "") -> None:
        """Send the client a close frame with the reason, wait shortly for its answer, and close the
        connection."""
        if not self.closed:
            self._protocol.send_close(code, reason.encode()[:_MOST_REASON].decode("utf-8", "ignore"))
            self._flush()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CLOSING_S):
                    while not self._ended:
                        self._arrived.clear()
                        await self._arrived.wait()
        if (transport := self._connection.transport) is not None:
            # A client that does not read would keep the connection open for the unsent bytes.
            transport.abort() if transport.get_write_buffer_size() else transport.close()

    def _flush(self) -> None:
        """Send the protocol's output, and close the connection if the protocol ends it."""
        transport = self._connection.transport
        for data in self._protocol.data_to_send():
            if data and transport is not None and not transport.is_closing():
                self.sent += len(data)
                transport.write(data)
            elif not data:
                self._ended = True
                self._arrived.set()
                if transport is not None:
                    transport.close()
