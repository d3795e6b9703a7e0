"""Runs a real Chromium, and serves it pages whose scripts try what a page may do."""

import asyncio
import json
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web
from in_process import serving_app

_NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
START_S = 120
"""Seconds in which a browser starts and a script ends, even on a slow machine."""

FLAGS = (
    "--headless",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--no-default-browser-check",
    "--no-proxy-server",
    "--remote-debugging-port=0",  # keeps the browser open after the page has loaded
    "--host-resolver-rules=MAP *.test 127.0.0.1, MAP * ~NOTFOUND, EXCLUDE localhost, EXCLUDE 127.0.0.1",
)
_PAGE = """<!doctype html><meta charset="utf-8"><title>page</title><body>
<script type="importmap">{"imports": {"openai": "/node_modules/openai/index.mjs"}}</script>
<script type="module">
const tell = (kind, value) => fetch(%(pages)s + "/" + kind,
  {method: "POST", mode: "no-cors", body: JSON.stringify(value ?? null)});
const proxy = %(proxy)s;
try { await tell("result", await (async () => { %(script)s })()); }
catch (error) { await tell("result", {failed: String(error)}); }
</script>"""


def chromium() -> str | None:
    """Return the browser's command, or ``None`` if none is installed."""
    return next((found for name in _NAMES if (found := shutil.which(name))), None)


@asynccontextmanager
async def browsing(url: str) -> AsyncIterator[None]:
    """Open the page in a new browser, which is killed at the end."""
    command = chromium()
    assert command is not None
    with tempfile.TemporaryDirectory(prefix="toolrelay-browser-", ignore_cleanup_errors=True) as profile:
        flags = [*FLAGS, f"--user-data-dir={profile}", *(["--no-sandbox"] if os.getuid() == 0 else [])]
        environment = {"PATH": os.environ.get("PATH", ""), "HOME": profile, "TMPDIR": profile}
        process = await asyncio.create_subprocess_exec(
            command,
            *flags,
            url,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            env=environment,
            cwd=Path(profile),
            start_new_session=True,
        )
        try:
            yield
        finally:
            # The command may be a script: if only the script were killed, the browser would stay.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


@dataclass
class Pages:
    """A server of pages, the same for every host name, and what a page has told it."""

    port: int = 0
    proxy: str = ""
    script: str = ""
    packages: Path | None = None
    result: "asyncio.Future[Any]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    signs: dict[str, asyncio.Event] = field(default_factory=dict)

    def sign(self, name: str) -> asyncio.Event:
        """Return the event that is set as soon as the page calls ``tell(name)``."""
        return self.signs.setdefault(name, asyncio.Event())

    async def run(self, script: str, proxy: str, *, host: str = "localhost", port: int = 0) -> Any:
        """Run the script in a page of that host, and return its result.

        The script is the body of an async function that returns JSON. In it, ``proxy`` is the address to
        call, and ``tell(name)`` sets a sign. ``port`` is the port that the page is loaded from, by default
        this server's. With ``packages`` the script may import from the ``node_modules`` there.
        """
        self.script, self.proxy = script, proxy
        self.result = asyncio.get_running_loop().create_future()
        async with asyncio.timeout(START_S), browsing(f"http://{host}:{port or self.port}/page"):
            return await self.result

    async def _serve(self, request: web.Request) -> web.Response:
        if request.method == "POST":
            told = json.loads(await request.read())
            name = request.path.removeprefix("/")
            if name != "result":
                self.sign(name).set()
            elif not self.result.done():
                self.result.set_result(told)
            return web.Response()
        if self.packages is not None and request.path.startswith("/node_modules/"):
            file = self.packages / request.path.removeprefix("/")
            return web.Response(body=file.read_bytes(), content_type="text/javascript")
        if request.path != "/page":
            return web.Response(status=404)
        here = f"http://127.0.0.1:{self.port}"
        page = _PAGE % {
            "pages": json.dumps(here),
            "proxy": json.dumps(self.proxy),
            "script": self.script,
        }
        return web.Response(text=page, content_type="text/html", headers={"Connection": "close"})


@asynccontextmanager
async def serving_pages() -> AsyncIterator[Pages]:
    """Run a server of pages on a free port."""
    pages = Pages()
    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", pages._serve)
    async with serving_app(app, shutdown_timeout=0.1) as address:
        pages.port = int(address.rpartition(":")[2])
        yield pages


class Switch:
    """A port that leads to one server and later to another, as a name does whose DNS record changes.

    ``choose`` gets the first bytes of each new connection and returns the port to which it goes.
    """

    def __init__(self, choose: Callable[[bytes], int]) -> None:
        self._choose = choose
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self.port = 0

    async def __aenter__(self) -> "Switch":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = int(self._server.sockets[0].getsockname()[1])
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        await asyncio.gather(*self._tasks)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self._writers.add(writer)
        try:
            first = await reader.read(65536)
            if first:
                there, back = await asyncio.open_connection("127.0.0.1", self._choose(first))
                self._writers.add(back)
                back.write(first)
                await asyncio.gather(_pump(reader, back), _pump(there, writer), return_exceptions=True)
                back.close()
        except ConnectionError:
            pass
        finally:
            writer.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.write_eof()
