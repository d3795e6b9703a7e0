"""One request of a client, with a field for each thing that is settled about it on its way in."""

import asyncio
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from aiohttp import hdrs, web
from aiohttp.helpers import set_exception
from aiohttp.http import StreamWriter
from aiohttp.streams import EMPTY_PAYLOAD, StreamReader

from proxy.server.serving.aiohttp_seam import AiohttpRequest
from proxy.server.serving.heads.head import GONE, Head

if TYPE_CHECKING:
    from proxy.relay.memory.local import LocalResponses
    from proxy.server.serving.connection import EdgeConnection
    from proxy.server.websockets.websocket import WebSocket

__all__ = ["EdgeRequest", "WebSocketMessage", "new_ids", "new_request_id"]

_IDS_AT_ONCE = 256
_NOTHING_MORE: Mapping[str, str] = MappingProxyType({})


def new_request_id() -> str:
    """An id for a request that came with none, or with one that cannot stand in a log."""
    return next(new_ids("req_", at_once=1))


def new_ids(prefix: str, at_once: int = _IDS_AT_ONCE) -> Iterator[str]:
    """Ids without end: 128 random bits behind ``prefix``.

    To ask the system for random bytes costs as much as many of its bytes do.
    """
    while True:
        digits = os.urandom(16 * at_once).hex()
        for start in range(0, 32 * at_once, 32):
            yield prefix + digits[start : start + 32]


@dataclass(slots=True)
class WebSocketMessage:
    """The message of a WebSocket that a request came in.

    ``socket`` takes the answer, each event of it with ``lane`` as its ``stream_id`` if that is not empty.
    ``local`` are the responses that this connection alone remembers.  ``generates`` is false for what is
    only prepared.  ``failed`` says, once it is answered, that nothing can be gone on from.
    """

    socket: "WebSocket"
    local: "LocalResponses"
    lane: str = ""
    generates: bool = True
    failed: bool = False


class EdgeRequest(AiohttpRequest):
    """What aiohttp's parser read, and what is made of it; it is served in :attr:`task`.

    ``head`` is shared with other requests, and says nothing of the body's length where it is.
    ``raw_path`` is the target as sent, ``content`` the body.
    ``body_exists`` says that the head announces one, which may be empty.
    ``client_address`` is empty unless it came through a trusted proxy.  ``page_headers`` and
    ``limit_headers`` go onto the head of its response, whoever writes it; the former has the trace, too,
    that was asked for and granted.  ``websocket`` is the message of a WebSocket that the request came in,
    else ``None``.  ``started`` says that a head has gone out, ``cut_off`` that the task is
    cancelled by the server's own end and not by the client.
    """

    __slots__ = (
        "_length",
        "_writer",
        "body_exists",
        "client_address",
        "content",
        "cut_off",
        "head",
        "headers",
        "keep_alive",
        "limit_headers",
        "method",
        "page_headers",
        "protocol",
        "raw_path",
        "started",
        "task",
        "version",
        "websocket",
    )

    def __init__(
        self,
        head: Head,
        content: StreamReader,
        protocol: "EdgeConnection",
        task: "asyncio.Task[None]",
        length: int | None = None,
    ) -> None:
        """``length`` is the body's in bytes where it does not stand in the head's ``headers``."""
        message = head.message
        self.head = head
        self.method = message.method
        self.raw_path = message.path
        self.headers = head.headers
        self.version = message.version
        self.keep_alive = not message.should_close
        self.content = content
        self.body_exists = content is not EMPTY_PAYLOAD
        self.protocol = protocol
        self.task = task
        self.client_address = ""
        self.page_headers: Mapping[str, str] = _NOTHING_MORE
        self.limit_headers: Mapping[str, str] = _NOTHING_MORE
        self.cut_off = False
        self.started = False
        self.websocket: WebSocketMessage | None = None
        self._length = length
        self._writer: StreamWriter | None = None

    @property
    def path(self) -> str:
        """The decoded path, for people to read: decisions are made on :attr:`raw_path`."""
        return self.head.message.url.path

    @property
    def transport(self) -> asyncio.Transport | None:
        """The connection's; ``None`` once the client has gone."""
        return self.protocol.transport

    @property
    def remote(self) -> str | None:
        """The address of the connection's other end."""
        peer = self.protocol.peername
        return str(peer[0]) if isinstance(peer, list | tuple) else peer

    def body_is_read(self) -> None:
        """Let go of the reader of a body that was read whole: a stream may be open for long after it."""
        self.content = EMPTY_PAYLOAD

    def answer_begins(self) -> None:
        """Let go of the head: that of the response is made, and a stream may be open for long after it."""
        self.started = True
        self.limit_headers = _NOTHING_MORE
        if self.content is EMPTY_PAYLOAD:  # Who sends a body on still asks what the head says of it.
            self.head = Head(GONE)
            self.headers = self.head.headers

    @property
    def content_length(self) -> int | None:
        """The size of the body in bytes where the head says it; the parser has checked it."""
        if self._length is not None:
            return self._length
        said = self.headers.get(hdrs.CONTENT_LENGTH)
        return None if said is None else int(said)

    @property
    def content_type(self) -> str:
        """The media type of the body in lower case."""
        return self.as_aiohttp().content_type

    @property
    def writer(self) -> StreamWriter:
        """aiohttp's way to the client; what is relayed goes straight to :attr:`transport`."""
        if self._writer is None:
            self._writer = StreamWriter(self.protocol, self.task.get_loop())
        return self._writer

    def as_aiohttp(self) -> web.BaseRequest:
        """The same for aiohttp, which writes the answers of our own."""
        loop = self.task.get_loop()
        return web.BaseRequest(self.head.message, self.content, self.protocol, self.writer, self.task, loop)

    def client_gone(self, exc: BaseException) -> None:
        set_exception(self.content, exc)
