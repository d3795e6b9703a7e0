"""A fake upstream on a socket that sends the bytes of a script, whether they are valid HTTP or not.

A script is a list of steps, which start once a whole request has been read:

``bytes``     are written unchanged
``float``     waits that many seconds
``RESET``     ends the connection with a TCP reset
``FIN``       closes the connection in order
``HANG``      sends nothing more until the client closes
``HALF``      closes its sending side only, and reads until the client closes
``KEEP``      ends this response and waits for the next request on the same connection
an ``asyncio.Event``  waits until the test sets it

If a script ends without one of the steps that end it, the upstream closes the connection in order.

In place of a script, a request gets the refusal that a real provider would answer (``provider_rules.judge``).
"""

import asyncio
import enum
import socket
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType

from provider_rules.judge import refusal_now
from waiting import PATIENCE_S


class End(enum.Enum):
    """The steps that end a script."""

    RESET = "reset"
    FIN = "fin"
    HANG = "hang"
    HALF = "half"
    KEEP = "keep"


RESET, FIN, HANG, HALF, KEEP = End.RESET, End.FIN, End.HANG, End.HALF, End.KEEP
Step = bytes | float | End | asyncio.Event
LAST_CHUNK = b"0\r\n\r\n"
ASKED = b'{"model":"gpt-4o-mini","messages":[{"role":"user","content":"hi"}]}'
"""A Chat request that the upstream does not refuse."""


def head(*headers: str, status: str = "200 OK") -> bytes:
    """Return a response head with the given header lines."""
    return "\r\n".join([f"HTTP/1.1 {status}", *headers, "", ""]).encode()


def chunk(data: bytes) -> bytes:
    """Return one chunk of the chunked transfer coding."""
    return b"%x\r\n%s\r\n" % (len(data), data)


def chunked(*pieces: bytes, content_type: str = "text/event-stream", status: str = "200 OK") -> list[Step]:
    """Return a whole chunked response that keeps the connection; each piece is one write."""
    opening = head(f"Content-Type: {content_type}", "Transfer-Encoding: chunked", status=status)
    return [opening, *[chunk(piece) for piece in pieces], LAST_CHUNK, KEEP]


def whole(
    body: bytes, *headers: str, content_type: str = "application/json", status: str = "200 OK"
) -> list[Step]:
    """Return a whole response with a Content-Length that keeps the connection."""
    opening = head(f"Content-Type: {content_type}", f"Content-Length: {len(body)}", *headers, status=status)
    return [opening + body, KEEP]


def event(data: str) -> bytes:
    """Return one server-sent event."""
    return f"data: {data}\n\n".encode()


@dataclass(frozen=True)
class RawRequest:
    """One request as it came; ``connection`` is the number of its connection, counted from 1."""

    method: str
    target: str
    headers: list[tuple[str, str]]
    body: bytes
    connection: int

    def header(self, name: str) -> str | None:
        """Return the value of the first header of that name."""
        return next((v for k, v in self.headers if k.lower() == name.lower()), None)

    def names(self) -> set[str]:
        """Return all header names in lower case."""
        return {name.lower() for name, _ in self.headers}


Script = Sequence[Step] | Callable[[RawRequest], Sequence[Step]]


class RawUpstream:
    """``async with RawUpstream(first_script, second_script) as upstream: upstream.url``.

    The n-th request plays the n-th script; the last script serves all further requests. A function in place
    of a script gets the request and returns one.
    """

    def __init__(self, *scripts: Script) -> None:
        self.scripts = scripts
        self.requests: list[RawRequest] = []
        self.connections = 0
        self.open_connections = 0
        self.sent = 0
        self._port = 0
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._all_closed = asyncio.Event()
        self._all_closed.set()
        self._news = asyncio.Condition()

    @property
    def port(self) -> int:
        """The port it listens on, or listened on."""
        return self._port

    @property
    def url(self) -> str:
        """A base URL ending in /v1."""
        return f"http://127.0.0.1:{self.port}/v1"

    async def __aenter__(self) -> "RawUpstream":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=1 << 20)
        self._port = int(self._server.sockets[0].getsockname()[1])
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        # Unsent bytes would keep a transport open after the loop has ended, and a later test would fail.
        unsent = [writer for writer in self._writers if writer.transport.get_write_buffer_size()]
        for writer in unsent:
            writer.transport.abort()
        await asyncio.gather(*[writer.wait_closed() for writer in unsent], return_exceptions=True)

    async def all_closed(self) -> None:
        """Wait until no connection is open; raises TimeoutError if that takes too long."""
        async with asyncio.timeout(PATIENCE_S):
            await self._all_closed.wait()

    async def asked(self, times: int) -> None:
        """Wait until the upstream has read that many requests."""
        async with asyncio.timeout(PATIENCE_S):
            async with self._news:
                await self._news.wait_for(lambda: len(self.requests) >= times)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        self.connections += 1
        self.open_connections += 1
        self._all_closed.clear()
        number = self.connections
        try:
            while (request := await _read_request(reader, number)) is not None:
                self.requests.append(request)
                script = self.scripts[min(len(self.requests), len(self.scripts)) - 1]
                async with self._news:
                    self._news.notify_all()
                if refused := refusal_now(request.method, request.target, request.headers, request.body):
                    script = whole(refused.data, status=f"{refused.status} Refused")
                elif callable(script):
                    script = script(request)
                if not await self._play(script, reader, writer):
                    break
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self._tasks.discard(task)
            writer.close()
            if not writer.transport.get_write_buffer_size():
                self._writers.discard(writer)
            self.open_connections -= 1
            if not self.open_connections:
                self._all_closed.set()

    async def _play(
        self, script: Sequence[Step], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """Play a script; return whether the connection waits for another request."""
        for step in script:
            match step:
                case bytes():
                    writer.write(step)
                    await writer.drain()
                    self.sent += len(step)
                case asyncio.Event():
                    await step.wait()
                case End.RESET:
                    linger = struct.pack("ii", 1, 0)
                    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                    writer.transport.abort()
                    return False
                case End.HANG | End.HALF:
                    if step is End.HALF:
                        writer.write_eof()
                    while await reader.read(1 << 16):
                        pass
                    return False
                case End.FIN:
                    return False
                case End.KEEP:
                    return True
                case _:
                    await asyncio.sleep(step)
        return False


async def _read_request(reader: asyncio.StreamReader, connection: int) -> RawRequest | None:
    try:
        opening = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    request_line, *lines = opening.decode("latin-1").split("\r\n")[:-2]
    method, target, _ = request_line.split(" ", 2)
    headers = [(name.strip(), value.strip()) for name, _, value in (line.partition(":") for line in lines)]
    lookup = {name.lower(): value for name, value in headers}
    body = b""
    if lookup.get("transfer-encoding", "").lower() == "chunked":
        while size := int((await reader.readline()).split(b";")[0], 16):
            body += await reader.readexactly(size)
            await reader.readexactly(2)
        await reader.readexactly(2)
    elif length := int(lookup.get("content-length", "0")):
        body = await reader.readexactly(length)
    return RawRequest(method, target, headers, body, connection)
