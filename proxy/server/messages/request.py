"""Represent one request of a client, with fields for what the stages find out about it."""

import asyncio
import os
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from aiohttp import hdrs, web
from aiohttp.helpers import set_exception
from aiohttp.http import StreamWriter
from aiohttp.streams import EMPTY_PAYLOAD, StreamReader
from msgspec import Struct

from proxy.server.messages.heads.head import GONE, Head
from proxy.server.transport.aiohttp_seam import AiohttpConnection, AiohttpRequest

if TYPE_CHECKING:
    from proxy.relay.memory.local import LocalResponses
    from proxy.server.transport.websocket import WebSocket

_IDS_AT_ONCE = 256
_NOTHING_MORE: Mapping[str, str] = MappingProxyType({})


def new_request_id() -> str:
    """Return an id for a request that came with none, or with one that is not fit for a log."""
    return next(new_ids("req_", at_once=1))


def new_ids(prefix: str, at_once: int = _IDS_AT_ONCE) -> Iterator[str]:
    """Yield ids for ever: ``prefix`` and 128 random bits.

    It asks the system for the bits of ``at_once`` ids together, because each call is expensive.
    """
    while True:
        digits = os.urandom(16 * at_once).hex()
        for start in range(0, 32 * at_once, 32):
            yield prefix + digits[start : start + 32]


class WebSocketMessage(Struct):
    """The message of a WebSocket that contained a request.

    ``socket`` sends the answer; each event gets ``lane`` as its ``stream_id`` unless that is empty.
    ``local`` are the responses that only this connection remembers. ``generates`` is false for a response
    that is only prepared. After the answer, ``failed`` says that no request can continue it.
    """

    socket: "WebSocket"
    local: "LocalResponses"
    lane: str = ""
    generates: bool = True
    failed: bool = False


class EdgeRequest(AiohttpRequest):
    """A request as aiohttp's parser read it, and what the proxy found out about it; :attr:`task` serves it.

    ``head`` may be shared with other requests, and then lacks the body's length. ``raw_path`` is the target
    as sent, ``content`` the body. ``body_exists`` says that the head announces a body, which may be empty.
    ``client_address`` is empty unless the request came through a trusted proxy. ``page_headers`` and
    ``limit_headers`` go into the head of every response to it; ``page_headers`` also holds the trace that was
    requested and granted. ``websocket`` is the message of a WebSocket that contained the request, or
    ``None``. ``started`` says that a head was sent. ``stopped_by_server`` says that the server cancelled
    the task because it stops, and not because the client left.
    """

    __slots__ = (
        "_length",
        "_writer",
        "body_exists",
        "client_address",
        "content",
        "head",
        "headers",
        "keep_alive",
        "limit_headers",
        "method",
        "page_headers",
        "protocol",
        "raw_path",
        "started",
        "stopped_by_server",
        "task",
        "version",
        "websocket",
    )

    def __init__(
        self,
        head: Head,
        content: StreamReader,
        protocol: AiohttpConnection,
        task: "asyncio.Task[None]",
        length: int | None = None,
    ) -> None:
        """Create the request; ``length`` is the body's length in bytes if ``head`` does not contain it."""
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
        self.stopped_by_server = False
        self.started = False
        self.websocket: WebSocketMessage | None = None
        self._length = length
        self._writer: StreamWriter | None = None

    @property
    def path(self) -> str:
        """The decoded path, for people to read; decisions use :attr:`raw_path`."""
        return self.head.message.url.path

    @property
    def transport(self) -> asyncio.Transport | None:
        """The connection's transport; ``None`` once the client has gone."""
        return self.protocol.transport

    @property
    def remote(self) -> str | None:
        """The address of the connection's peer."""
        peer = self.protocol.peername
        return str(peer[0]) if isinstance(peer, list | tuple) else peer

    def body_is_read(self) -> None:
        """Release the reader of a body that was read completely, because a stream may stay open long after
        it."""
        self.content = EMPTY_PAYLOAD

    def answer_begins(self) -> None:
        """Release the head, because a stream may stay open long after it; the response's head is made."""
        self.started = True
        self.limit_headers = _NOTHING_MORE
        if self.content is EMPTY_PAYLOAD:  # Code that forwards a body still needs the head.
            self.head = Head(GONE)
            self.headers = self.head.headers

    @property
    def content_length(self) -> int | None:
        """The size of the body in bytes if the head states it; the parser has checked it."""
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
        """aiohttp's writer to the client; relayed bytes go directly to :attr:`transport`."""
        if self._writer is None:
            self._writer = StreamWriter(self.protocol, self.task.get_loop())
        return self._writer

    def as_aiohttp(self) -> web.BaseRequest:
        """Return the request in aiohttp's form; aiohttp writes the proxy's own answers."""
        loop = self.task.get_loop()
        return web.BaseRequest(self.head.message, self.content, self.protocol, self.writer, self.task, loop)

    def client_gone(self, exc: BaseException) -> None:
        set_exception(self.content, exc)
