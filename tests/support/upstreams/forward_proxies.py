"""Forward proxies: a strict double whose answers a test may script, and a real tinyproxy."""

import asyncio
import base64
import shutil
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import TracebackType

from child_server import child_server, reserved_port
from require import require

_TINYPROXY = """\
Port {port}
Listen 127.0.0.1
Timeout 60
LogFile "{folder}/tinyproxy.log"
LogLevel Connect
{more}
"""


class ForwardProxy:
    """A proxy that takes CONNECT, and absolute targets of ``http://``, as RFC 9112, section 3.2, has them.

    It refuses what real ones refuse: another form of target (400), a ``Host`` that is not the target's, with
    its port or without (400), missing or wrong credentials (407), and a host that it does not know (502).
    ``hosts`` are the hosts that it resolves, each with the port of the loopback where it is. ``script`` are
    bytes to send in answer to each CONNECT, and ``hang`` says not to answer at all.
    """

    def __init__(
        self,
        hosts: Mapping[str, int],
        *,
        credentials: str = "",
        script: bytes | None = None,
        hang: bool = False,
    ) -> None:
        self._hosts = hosts
        self._credentials = base64.b64encode(credentials.encode()).decode() if credentials else ""
        self._script = script
        self._hang = hang
        self.asked: list[str] = []
        """The targets of the requests that were let through or answered by the script."""
        self.refused: list[int] = []
        self.heads: list[bytes] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> "ForwardProxy":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def port(self) -> int:
        """The port on the loopback."""
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def url(self) -> str:
        """The address, without credentials."""
        return f"http://127.0.0.1:{self.port}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            # It is cancelled at the end of the test, which asyncio's own callback would report.
            with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                await self._answer(reader, writer)
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        self.heads.append(head)
        lines = head.decode("ascii").split("\r\n")
        method, target, version = lines[0].split(" ")
        headers = {
            name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])
        }
        authority = target if method == "CONNECT" else target.removeprefix("http://").partition("/")[0]
        bare = authority.rpartition(":")[0] if ":" in authority else authority
        well_formed = method == "CONNECT" or target.startswith("http://")
        if version != "HTTP/1.1" or not well_formed or headers.get("host") not in (authority, bare):
            return await self._refuse(writer, 400, "Bad Request")
        wanted = f"Basic {self._credentials}"
        if self._credentials and headers.get("proxy-authorization") != wanted:
            return await self._refuse(
                writer, 407, "Proxy Authentication Required\r\nProxy-Authenticate: Basic"
            )
        if self._hang:
            await asyncio.Event().wait()
        if self._script is not None:
            self.asked.append(authority)
            writer.write(self._script)
            await writer.drain()
            return None
        if bare not in self._hosts:
            return await self._refuse(writer, 502, "Bad Gateway")
        self.asked.append(authority)
        inner_reader, inner = await asyncio.open_connection("127.0.0.1", self._hosts[bare])
        if method == "CONNECT":
            writer.write(b"HTTP/1.1 200 Connection established\r\nVia: 1.1 test\r\n\r\n")
        else:
            path = target.removeprefix(f"http://{authority}") or "/"
            own = ("proxy-authorization", "proxy-connection")
            kept = [line for line in lines[1:] if line.partition(":")[0].lower() not in own]
            inner.write("\r\n".join([f"{method} {path} HTTP/1.1", *kept]).encode("ascii"))
        try:
            await asyncio.gather(_pump(reader, inner), _pump(inner_reader, writer))
        finally:
            inner.close()
        return None

    async def _refuse(self, writer: asyncio.StreamWriter, status: int, reason: str) -> None:
        self.refused.append(status)
        writer.write(f"HTTP/1.1 {status} {reason}\r\nContent-Length: 6\r\n\r\nsecret".encode())
        await writer.drain()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    with suppress(OSError):
        writer.write_eof()


@asynccontextmanager
async def tinyproxy(folder: Path, more: str = "") -> AsyncIterator[int]:
    """Run tinyproxy with the directives ``more``; yield its port on the loopback."""
    program = shutil.which("tinyproxy") or shutil.which("tinyproxy", path="/usr/sbin:/usr/bin") or ""
    require("tinyproxy", bool(program), "tinyproxy is not installed")
    with reserved_port() as port:
        file = folder / f"tinyproxy-{port}.conf"
        file.write_text(_TINYPROXY.format(port=port, folder=folder, more=more))
        async with child_server(program, "-d", "-c", str(file), port=port):
            yield port
