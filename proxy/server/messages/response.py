"""Write a client's response directly to its transport.

aiohttp parses the request and keeps the connection. Its ``StreamResponse.write`` is a coroutine that checks
compression, lengths and hooks for each piece. A stream has hundreds of pieces, so this module adds the few
bytes of HTTP/1.1 framing itself.
"""

import asyncio
import contextlib
import socket
import struct
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import lru_cache
from http import HTTPStatus

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.helpers import rfc822_formatted_time
from msgspec import Struct

from proxy.base.caches import declare_lru
from proxy.base.errors import UpstreamBroken
from proxy.http.headers import Columns, Headers, HeaderSection, by_names
from proxy.http.secrets import Secrets
from proxy.json.in_thread import LARGE_BYTES, in_thread
from proxy.server.messages.own_address import own_origin
from proxy.server.messages.request import EdgeRequest

_MAX_UNREAD_BYTES = 64 * 1024
_PAST_LARGE = LARGE_BYTES + 1
"""Bytes in the transport's buffer above which the upstream must wait."""

_SMALL = 512
_SIZE_LINES = tuple([b"%x\r\n" % size for size in range(_SMALL)])
"""The size lines of small chunks; formatting one takes longer than looking it up."""

_RESET = struct.pack("ii", 1, 0)
_STATUSES = frozenset(HTTPStatus)


class _SentResponse(web.StreamResponse):
    """A response for aiohttp that stands for one that was sent without aiohttp."""

    # They replace the base's properties, which need a state that is never created.
    __slots__ = ("keep_alive", "status")
    status: int
    keep_alive: bool
    prepared = True

    def __init__(self, status: int, *, keep_alive: bool) -> None:
        # Does not call the base's initializer: the headers and the state that it creates are not used.
        self.status = status
        self.keep_alive = keep_alive

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        return None

    async def write_eof(self, data: bytes = b"") -> None:
        return


class HttpClientStream:
    """A :class:`~proxy.relay.base.ClientStream` that answers one request.

    ``headers`` are sent with every response, whatever its status. If ``last`` is true, the connection ends
    with the response. ``first_byte_at`` is when the body began, in monotonic seconds, and 0 before that.
    ``sent`` counts bytes, including head and framing.
    """

    __slots__ = (
        "_bodiless",
        "_chunked",
        "_ended",
        "_flows",
        "_headers",
        "_held",
        "_last",
        "_left",
        "_request",
        "_response",
        "_secrets",
        "_transport",
        "_until_close",
        "first_byte_at",
        "sent",
    )

    def __init__(self, request: EdgeRequest, headers: dict[str, str], *, last: bool = False) -> None:
        self._request = request
        self._headers = headers
        self._last = last
        self._left: int | None = None
        """The bytes of the body that are still to be sent, if its length was announced."""
        self._response: _SentResponse | None = None
        self._transport: asyncio.Transport | None = None
        self._held = b""
        self._chunked = False
        self._flows = False
        self._bodiless = False
        self._until_close = False
        self._secrets: Secrets | None = None
        self._ended = False
        self.first_byte_at = 0.0
        self.sent = 0

    @property
    def started(self) -> bool:
        return self._response is not None

    @property
    def stopped_by_server(self) -> bool:
        return self._request.stopped_by_server

    @property
    def response(self) -> web.StreamResponse:
        """The response that was sent, in aiohttp's form."""
        if self._response is None:
            raise RuntimeError("nothing has been sent to the client")
        return self._response

    @property
    def completed(self) -> int:
        """The status once the whole body has been sent, else 0.

        The end may not have been reached here: a client may leave as soon as it has the announced length or
        the end mark.
        """
        if self._response is None or self._held:
            return 0
        return self._response.status if self._ended or self._left == 0 else 0

    @property
    def origin(self) -> str:
        return own_origin(self._request.head)

    def blank_out(self, secrets: Secrets | None) -> None:
        self._secrets = secrets

    def set_header(self, name: str, value: str) -> None:
        self._headers.pop(name, None)
        if value:
            self._headers[name] = value

    def start(self, status: int, headers: Headers) -> None:
        request = self._request
        theirs = headers if isinstance(headers, HeaderSection) else HeaderSection.of(headers)
        # An upstream's own 429 comes with the limits that explain it.
        limits = request.limit_headers if status != 429 else {}
        ours = {**limits, **self._headers, "Date": rfc822_formatted_time()}
        bodiless = request.method == "HEAD" or status in (204, 304)
        keep_alive = request.keep_alive and not self._last
        # Only versions 1.0 and 1.1 are served, so the minor version is enough.
        template = _head_templates(theirs.names)[
            tuple(ours), bodiless, status == 204, request.version.minor, keep_alive
        ]
        self._bodiless = bodiless
        self._chunked = template.chunked
        self._until_close = template.until_close
        self._held, self._left = template.head(status, theirs.values, ours.values())
        self._transport = request.protocol.transport
        self._response = _sent(status, template.keep_alive)
        request.answer_begins()

    def flush(self) -> None:
        if self._held:
            with contextlib.suppress(ConnectionResetError):
                self._send(b"")

    def push(self, data: bytes, last: bool = False) -> Awaitable[None] | None:
        if data[LARGE_BYTES:_PAST_LARGE]:  # A slice needs no call.
            return self._push_large(data, last)
        secrets = self._secrets
        # If there is nothing to replace, `replace` returns the same object, in two thirds of the time of a
        # search. Letters may be escaped as well, but few providers escape ASCII.
        if secrets is not None and (
            (secrets.sign in data and data.replace(secrets.beginning, b"*") is not data)
            or data.find(b"\\u00") >= 0
        ):
            data = secrets.blanked(data)
        if last or not self._flows or not data:
            return self._push(data, last)
        transport = self._transport
        if transport is None or transport.is_closing():
            raise ConnectionResetError("the client has closed the connection")
        size = len(data)
        data = _SIZE_LINES[size] + data + b"\r\n" if size < _SMALL else b"%x\r\n%b\r\n" % (size, data)
        self.sent += len(data)
        transport.write(data)
        if transport.get_write_buffer_size() > _MAX_UNREAD_BYTES:
            return self._request.writer.drain()
        return None

    def _push(self, data: bytes, last: bool) -> Awaitable[None] | None:
        """Send a piece that may be the first or the last of a body; pieces between them may skip this
        method."""
        if self._bodiless or not data:
            return None
        if not self.first_byte_at:
            self.first_byte_at = time.monotonic()
        if self._left is not None:
            if len(data) > self._left:
                raise UpstreamBroken("the upstream's response is longer than its Content-Length")
            self._left -= len(data)
        if self._chunked:
            data = b"%x\r\n%b\r\n" % (len(data), data)
        if last:
            self._held += data
            self._flows = False
            self._ended = True
            return None
        transport = self._send(data)
        self._flows = self._chunked
        if transport.get_write_buffer_size() > _MAX_UNREAD_BYTES:
            return self._request.writer.drain()
        return None

    async def _push_large(self, data: bytes, last: bool) -> None:
        """Send megabytes in parts, each after the client has read the previous one, and let other tasks run.

        An event must be sent whole, or the client would take the next bytes for its rest. If the task is
        cancelled meanwhile, the rest goes into the transport's buffer.
        """
        at = 0
        if self._secrets is not None:
            data = await in_thread(self._secrets.blanked, data)
        try:
            while len(data) - at > LARGE_BYTES:
                wait = self._push(data[at : at + LARGE_BYTES], False)
                at += LARGE_BYTES
                await (asyncio.sleep(0) if wait is None else wait)
            rest, at = data[at:], len(data)
            if (wait := self._push(rest, last)) is not None:
                await wait
        except asyncio.CancelledError:
            left = self._push(data[at:], last) if at < len(data) else None
            if asyncio.iscoroutine(left):
                left.close()
            raise

    async def write(self, data: bytes) -> None:
        if (wait := self.push(data)) is not None:
            await wait

    def before_finish(self) -> Awaitable[None] | None:
        return None

    def finish(self) -> None:
        if self._left:
            # The client would read the next response as the rest of this one.
            self.abort()
        elif self._chunked:
            self._send(b"0\r\n\r\n")
        elif self._held:
            self._send(b"")

    def abort(self) -> None:
        if (transport := self._request.transport) is not None:
            self.flush()
            if self._until_close and not transport.is_closing():
                # A normal close would mean that the body is complete.
                sock = transport.get_extra_info("socket")
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                transport.abort()
            transport.close()

    def _send(self, data: bytes) -> asyncio.Transport:
        transport = self._transport
        if transport is None or transport.is_closing():
            raise ConnectionResetError("the client has closed the connection")
        if self._held:
            data = self._held + data
            self._held = b""
        self.sent += len(data)
        transport.write(data)
        return transport


# The same few names and statuses recur, so their templates are cached.

_Case = tuple[tuple[str, ...], bool, bool, int, bool]
"""What a template depends on besides the upstream's names: the names of the proxy's headers, whether there is
no body, whether no length is allowed, the minor version, and whether the connection may continue."""

_MOST_CASES = 8
"""The most templates that are cached for the same names of an upstream's headers."""


class _HeadTemplate(Struct, frozen=True):
    """A response's head without its status and values, and how its body is framed.

    ``parts`` has a place for the status and one for each value. ``take`` selects those values of the
    upstream that have a place, and is ``None`` if all have one.
    """

    parts: tuple[str, ...]
    take: Callable[[Sequence[str]], Sequence[str]] | None
    chunked: bool
    until_close: bool
    keep_alive: bool
    length_at: int
    """The index of ``Content-Length`` among the values; 0 if no length is announced."""

    def head(self, status: int, theirs: Sequence[str], ours: Iterable[str]) -> tuple[bytes, int | None]:
        """Return the head, including its blank line, and the length of the body that it announces.

        Raises ValueError for a value that would end its line, and for a length that is not a number.
        """
        kept = theirs if self.take is None else self.take(theirs)
        values = [_status_words(status), *kept, *ours]
        # The headers were checked before; this makes sure that none ends its line and begins another.
        _check("".join(values))
        parts = [*self.parts]
        parts[1::2] = values
        return "".join(parts).encode(), int(values[self.length_at]) if self.length_at else None


class _HeadTemplates(dict[_Case, _HeadTemplate]):
    """The templates of all responses whose upstream's headers have the same names; a full cache drops the
    oldest.

    Only a few cases occur at a time. But there are hundreds of them, a client can request most of them, and
    each template is as long as the names.
    """

    __slots__ = ("_theirs",)

    def __init__(self, theirs: tuple[str, ...]) -> None:
        self._theirs = theirs

    def __missing__(self, case: _Case) -> _HeadTemplate:
        template = _head_template(self._theirs, *case)
        if len(self) >= _MOST_CASES:
            del self[next(iter(self))]
        self[case] = template
        return template


_head_templates = by_names(_HeadTemplates)


def _head_template(
    theirs: tuple[str, ...],
    ours: tuple[str, ...],
    bodiless: bool,
    lengthless: bool,
    minor: int,
    keep_alive: bool,
) -> _HeadTemplate:
    """Build a template for a :data:`_Case`; raises ValueError for a name that would end its line."""
    _check("".join((*theirs, *ours)))
    low = [name.lower() for name in theirs]
    # The proxy's limits replace the upstream's, which belong to a shared key.
    replaced = {name for name in ours if name.startswith("x-ratelimit-")}
    if lengthless:
        replaced.add("content-length")
    kept = Columns.where(theirs, lambda name: name.lower() not in replaced)
    endless = not bodiless and "content-length" not in low
    # Without chunks, only the connection's end can end a body of unknown length.
    until_close = endless and minor == 0
    keep_alive = keep_alive and not until_close
    end = ""
    if endless and not until_close:
        end += "Transfer-Encoding: chunked\r\n"
    if not bodiless and "content-type" not in low:
        end += "Content-Type: application/octet-stream\r\n"
    if not keep_alive:
        end += "Connection: close\r\n"
    elif minor == 0:
        end += "Connection: keep-alive\r\n"
    parts = [f"HTTP/1.{minor} "]
    for name in (*kept.names, *ours):
        parts += ["", f"\r\n{name}: "]
    parts += ["", f"\r\n{end}\r\n"]
    take = None if all(kept.mask) else kept.take
    named = ["", *kept.names, *ours]
    lengths = [at for at, name in enumerate(named) if name.lower() == "content-length"]
    length_at = lengths[0] if lengths and not bodiless else 0
    return _HeadTemplate(tuple(parts), take, endless and not until_close, until_close, keep_alive, length_at)


def _check(said: str) -> None:
    """Raise ValueError if a header contains a control character."""
    if "\n" in said or "\r" in said or "\0" in said:
        raise ValueError("a response header contains a control character")


@lru_cache(maxsize=1024)
def _status_words(status: int) -> str:
    return f"{status} {HTTPStatus(status).phrase if status in _STATUSES else ''}"


@lru_cache(maxsize=1024)
def _sent(status: int, keep_alive: bool) -> _SentResponse:
    """Return a shared object for all responses with this status; it holds nothing of one response."""
    return _SentResponse(status, keep_alive=keep_alive)


def sent_response(status: int, *, keep_alive: bool) -> web.StreamResponse:
    """Return a response for the server's log, for one that was not sent over HTTP."""
    return _sent(status, keep_alive)


declare_lru("statuses", _status_words, 300)
declare_lru("sent_responses", _sent, 2000)
