"""A whole proxy on a real socket, and a client that uses a plain socket.

The client reads status line, headers, framing and body itself, so that a test sees what a library would hide:
a missing last chunk, a header that was sent twice, or bytes after the end.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp.test_utils import TestClient
from in_process import serving_proxy
from waiting import LATE_S, PATIENCE_S, until

from proxy.app.app import Overrides, Services, create_app
from proxy.config.load import Config
from proxy.config.secret import Secret
from proxy.records.rows import RunRecord, RunStatus
from proxy.server.connections.application import ConnectionBounds
from proxy.server.connections.draining import Draining
from proxy.server.peers import Peers
from proxy.store.base import RunDetail, RunFilter

SERVER_KEY = "sk-server-0123456789abcdef"

ONLY_DEPARTURE: dict[str, Any] = {
    "server": {"send_timeout_s": LATE_S},
    "tools": {"timeout_s": LATE_S, "keepalive_s": LATE_S},
}
"""Settings for a test in which only the client's departure may end something.

No timeout ends it, and no keep-alive comment fails. The timeouts of upstreams are late, too, in every
configuration of :func:`make_config`.
"""


@dataclass
class Answer:
    """One response as it came. ``clean`` says that its HTTP framing was complete."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes = b""
    clean: bool = False
    pieces: list[bytes] = field(default_factory=list)

    def header(self, name: str) -> str | None:
        """Return the value of the first header of that name."""
        return next((value for key, value in self.headers if key.lower() == name.lower()), None)

    def names(self) -> list[str]:
        """Return all header names in lower case, in order."""
        return [key.lower() for key, _ in self.headers]

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """The error object of OpenAI's shape: four members, and optionally the URL of a page about it."""
        error = self.json["error"]
        assert set(error) - {"doc_url"} == {"message", "type", "param", "code"}
        assert error["message"]
        return dict(error)


class Conversation:
    """One connection to the proxy: requests are sent as bytes, and responses are read piece by piece."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def head(self) -> Answer:
        """Read status and headers of the next response; 1xx responses are skipped."""
        while True:
            lines = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")[:-2]
            status = int(lines[0].split(" ")[1])
            pairs = [line.partition(":") for line in lines[1:]]
            if status >= 200:
                return Answer(status, [(name.strip(), value.strip()) for name, _, value in pairs])

    async def pieces(self, answer: Answer) -> AsyncIterator[bytes]:
        """Yield the body as it is framed, by chunks or by reads; sets ``answer.clean`` if it is complete."""
        if answer.status in (204, 304):
            answer.clean = True
        elif (answer.header("transfer-encoding") or "").lower() == "chunked":
            while True:
                line = await self.reader.readline()
                if not line.endswith(b"\r\n"):
                    return
                size = int(line, 16)
                try:
                    data = await self.reader.readexactly(size + 2)
                except (asyncio.IncompleteReadError, ConnectionError):
                    return
                assert data.endswith(b"\r\n")
                if size == 0:
                    answer.clean = True
                    return
                yield data[:-2]
        elif (length := answer.header("content-length")) is not None:
            left = int(length)
            while left:
                data = await self.reader.read(left)
                if not data:
                    return
                left -= len(data)
                yield data
            answer.clean = True
        else:
            while data := await self.reader.read(65536):
                yield data
            answer.clean = True

    async def answer(self) -> Answer:
        """Read a whole response."""
        answer = await self.head()
        try:
            async for piece in self.pieces(answer):
                answer.pieces.append(piece)
        except ConnectionError:
            answer.clean = False
        answer.body = b"".join(answer.pieces)
        return answer

    def leave(self) -> None:
        """Abort the connection."""
        self.writer.transport.abort()


@dataclass
class ProxyAddress:
    """The port of a proxy, and the requests that a client can send to it."""

    port: int
    host = "127.0.0.1"

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[Conversation]:
        """Open one connection."""
        reader, writer = await asyncio.open_connection(self.host, self.port, limit=1 << 24)
        try:
            yield Conversation(reader, writer)
        finally:
            writer.close()

    def request(
        self,
        body: Any = None,
        headers: Mapping[str, str] | Sequence[tuple[str, str]] = (),
        *,
        method: str = "POST",
        path: str = "/v1/chat/completions",
    ) -> bytes:
        """Return a request as bytes; a body that is not bytes is sent as JSON."""
        pairs = list(headers.items() if isinstance(headers, Mapping) else headers)
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
        lines = [f"{method} {path} HTTP/1.1"]
        if not any(name.lower() == "host" for name, _ in pairs):
            lines.append(f"Host: {self.host}:{self.port}")
        lines += [f"{name}: {value}" for name, value in pairs]
        if body is not None:
            if not any(name.lower() == "content-type" for name, _ in pairs):
                lines.append("Content-Type: application/json")
            lines.append(f"Content-Length: {len(body)}")
        return "\r\n".join([*lines, "", ""]).encode("latin-1") + (body or b"")

    @asynccontextmanager
    async def sent(
        self, body: Any = None, headers: Mapping[str, str] | Sequence[tuple[str, str]] = (), **target: str
    ) -> AsyncIterator[Conversation]:
        """Open a connection and send one request on it."""
        async with self.connect() as conversation:
            conversation.writer.write(self.request(body, headers, **target))
            await conversation.writer.drain()
            yield conversation

    async def ask(
        self, body: Any = None, headers: Mapping[str, str] | Sequence[tuple[str, str]] = (), **target: str
    ) -> Answer:
        """Send one request and read its whole response."""
        async with asyncio.timeout(PATIENCE_S), self.sent(body, headers, **target) as conversation:
            return await conversation.answer()


@dataclass
class Proxy(ProxyAddress):
    """A proxy that runs in this process."""

    services: Services
    client: TestClient[Any, Any] = field(kw_only=True)
    bounds: ConnectionBounds = field(kw_only=True)
    draining: Draining = field(kw_only=True)

    async def get(self, path: str, headers: Mapping[str, str] | Sequence[tuple[str, str]] = ()) -> Answer:
        """Read a path with aiohttp's client, for a test that does not look at framing."""
        async with self.client.get(path, headers=headers, allow_redirects=False) as answer:
            return Answer(answer.status, [*answer.headers.items()], await answer.read(), clean=True)

    async def runs(self) -> Sequence[RunRecord]:
        """Return all recorded runs, the newest first."""
        return await self.services.store.list_runs(RunFilter())

    async def only_run(self) -> RunDetail:
        """Return the only recorded run with its details."""
        (run,) = await self.runs()
        detail = await self.services.store.get_run(run.id)
        assert detail is not None
        return detail

    async def run_reaches(self, status: RunStatus) -> RunDetail:
        """Wait until the only run has that status, and return it."""

        async def reached() -> bool:
            return bool(await self.runs()) and (await self.only_run()).run.status == status

        await until(reached)
        return await self.only_run()


def make_config(
    *upstreams: str | Mapping[str, Any],
    allow: Sequence[str] = ("core__*", "probe_tools__*"),
    modules: Sequence[str] = (),
    tools: Mapping[str, Any] | None = None,
    **sections: Any,
) -> Config:
    """Return a configuration with these upstreams (URLs, or tables with ``name``), without any file.

    The proxy needs no authentication unless there are ``keys``, or ``auth`` says otherwise. Calls need no
    approval unless there is a section ``approvals``.
    """
    sections.setdefault("approvals", {"enabled": False})
    if not sections.get("keys"):
        sections["auth"] = {"mode": "open", **sections.get("auth", {})}
    tables: dict[str, Any] = {}
    for position, upstream in enumerate(upstreams):
        table = {"base_url": upstream} if isinstance(upstream, str) else dict(upstream)
        name = table.pop("name", f"u{position}" if position else "default")
        tables[name] = {
            "api_key": Secret("env:SERVER_KEY", SERVER_KEY),
            "first_byte_timeout_s": LATE_S,
            "idle_timeout_s": LATE_S,
            **table,
        }
    return Config.model_validate(
        {
            "upstreams": tables,
            "policy": {"allow": tuple(allow), **sections.pop("policy", {})},
            "store": {"url": "memory:", **sections.pop("store", {})},
            "tools": {"modules": tuple(modules), **(tools or {})},
            **sections,
        }
    )


@asynccontextmanager
async def running(
    config: Config, overrides: Overrides | None = None, peers: Peers | None = None
) -> AsyncIterator[Proxy]:
    """Serve the configuration on a free port, as the command does."""
    app = await create_app(config, overrides=overrides, peers=peers)
    async with serving_proxy(app) as client:
        assert client.port is not None
        yield Proxy(client.port, app.services, client=client, bounds=app.bounds, draining=app.draining)
