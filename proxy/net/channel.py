"""A private message channel between two processes of this package, over a socket.

A message consists of two lengths, a JSON object that says what it is, and bytes. Both ends are this package
in the same version, started by one user. The limits protect against faults, not against an attacker.
"""

import asyncio
import contextlib
import socket
import struct
from typing import Any

import orjson

MAX_BODY = 8 << 20
_MAX_HEADER = 4096
_MAX_UNREAD = 16 << 20
"""The most bytes that wait for a peer that does not read. Beyond it, messages are dropped and :meth:`send`
returns false."""

_LENGTHS = struct.Struct(">II")


class ChannelBroken(Exception):
    """The other end sent something that is not a message."""


class Channel:
    """One end of the channel."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._turn = asyncio.Lock()

    @classmethod
    async def over(cls, end: socket.socket) -> "Channel":
        """Make a channel over one socket of a connected pair."""
        return cls(*await asyncio.open_unix_connection(sock=end))

    async def receive(self) -> tuple[dict[str, Any], bytes] | None:
        """Return the next message; ``None`` if the other end has gone. Raises :class:`ChannelBroken`."""
        try:
            head, size = _LENGTHS.unpack(await self._reader.readexactly(_LENGTHS.size))
            if head > _MAX_HEADER or size > MAX_BODY:
                raise ChannelBroken(f"a message of {head} and {size} bytes")
            raw = await self._reader.readexactly(head)
            body = await self._reader.readexactly(size)
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        try:
            header = orjson.loads(raw)
        except orjson.JSONDecodeError:
            raise ChannelBroken("a header that is no JSON") from None
        if not isinstance(header, dict) or not isinstance(header.get("kind"), str):
            raise ChannelBroken("a header without a kind")
        return header, body

    def send(self, kind: str, body: bytes = b"", **header: Any) -> bool:
        """Queue a message; return whether it was queued. Never waits, never raises."""
        raw = orjson.dumps({"kind": kind, **header})
        transport = self._writer.transport
        if transport.is_closing() or len(raw) > _MAX_HEADER or len(body) > MAX_BODY:
            return False
        if transport.get_write_buffer_size() > _MAX_UNREAD:
            return False
        self._writer.write(_LENGTHS.pack(len(raw), len(body)) + raw + body)
        return True

    async def send_in_turn(self, kind: str, body: bytes = b"", **header: Any) -> bool:
        """Send a message once the other end has read what was sent; return whether it was sent.

        Those who wait take turns. If the other end has gone, nothing is sent.
        """
        async with self._turn:
            await self.flush()
            return self.send(kind, body, **header)

    @property
    def unread(self) -> int:
        """The number of sent bytes that the other end has not read yet."""
        return self._writer.transport.get_write_buffer_size()

    @property
    def is_closing(self) -> bool:
        """Whether nothing can be sent any more."""
        return self._writer.transport.is_closing()

    async def flush(self) -> None:
        """Wait until the kernel has most of what was sent, or the other end has gone."""
        with contextlib.suppress(ConnectionError):
            await self._writer.drain()

    def close(self) -> None:
        """Close the channel; the other end sees its end."""
        self._writer.close()
