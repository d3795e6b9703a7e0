"""What the cases share: a proxy before a faulty upstream, in this process or in one of its own."""

import asyncio
import json
import os
import random
import re
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from process_tree import children, kill_tree
from raw_upstream import RawUpstream, Script, head
from running_proxy import SERVER_KEY, Answer, Conversation, Proxy, make_config, running
from waiting import LATE_S, PATIENCE_S
from wire_kits import Kit

__all__ = [
    "ECHO",
    "MODES",
    "OFFERED",
    "SSE_HEAD",
    "TIME",
    "Allow",
    "ServeProcess",
    "ask",
    "before",
    "cut",
    "raw",
    "serve_process",
    "served_next",
]

Allow = tuple[str, ...]
TIME = "core__get_current_time"
ECHO = "probe_tools__echo"
OFFERED = ("core__*", "probe_tools__*")
MODES: dict[str, tuple[str, ...]] = {"none offered": (), "offered": OFFERED}
SSE_HEAD = head("Content-Type: text/event-stream", "Transfer-Encoding: chunked")
_NO_LIMIT = {"requests": ("1000000/minute",), "tool_calls": ("1000000/minute",)}


@asynccontextmanager
async def before(
    *scripts: Script, allow: Sequence[str] = OFFERED, served: Any = None, **config: Any
) -> AsyncIterator[tuple[Proxy, RawUpstream]]:
    """A proxy in this process before an upstream that plays one script a request."""
    config.setdefault("limits", _NO_LIMIT)
    async with RawUpstream(*scripts) as upstream:
        table = {"base_url": upstream.url, **(served or {})}
        async with running(make_config(table, allow=allow, modules=("probe_tools",), **config)) as proxy:
            yield proxy, upstream


async def ask(proxy: Proxy, kit: Kit, body: Any = None, headers: Any = (), **more: Any) -> Answer:
    """One request on the kit's wire and its whole response."""
    return await proxy.ask(kit.ask(**more) if body is None else body, headers, path=kit.path)


async def raw(proxy: Proxy, *pieces: bytes, pause_s: float = 0.02) -> tuple[Answer, bytes]:
    """Bytes as they stand go out, one response comes back; what follows it until the connection ends
    or nothing more comes for a moment."""
    async with asyncio.timeout(PATIENCE_S), proxy.connect() as conversation:
        for piece in pieces:
            conversation.writer.write(piece)
            await asyncio.sleep(pause_s)
        answer = await conversation.answer()
        return answer, await rest_of(conversation)


async def rest_of(conversation: Conversation, within_s: float = 0.5) -> bytes:
    """What comes next on a connection, to its end or to a pause."""
    try:
        async with asyncio.timeout(within_s):
            return await conversation.reader.read()
    except (TimeoutError, ConnectionError):
        return b""


async def served_next(proxy: Proxy, upstream: RawUpstream, kit: Kit) -> None:
    """After a fault a plain stream is byte-exact."""
    upstream.scripts = (kit.stream("next"),)
    answer = await ask(proxy, kit)
    assert answer.clean
    assert kit.read(answer.body).text == "next"


def cut(data: bytes, seed: int, pieces: int = 40) -> list[bytes]:
    """The data in pieces at seeded places, inside characters and line ends too."""
    generator = random.Random(seed)
    places = sorted(generator.sample(range(1, len(data)), min(pieces, len(data) - 1)))
    return [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True)]


@dataclass
class ServeProcess(Proxy):
    """``toolrelay serve`` in a process of its own."""

    process: asyncio.subprocess.Process
    folder: Path
    log: Path

    @property
    def worker(self) -> int:
        """The process that serves; ``process`` supervises it."""
        (pid,) = children(self.process.pid)
        return pid

    def kill(self) -> None:
        """``kill -9`` of both."""
        kill_tree(self.process.pid)

    def rss(self) -> int:
        """Resident bytes of the process that serves."""
        pages = Path(f"/proc/{self.worker}/statm").read_text("ascii").split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def fds(self) -> int:
        """Open file descriptors."""
        return len(os.listdir(f"/proc/{self.worker}/fd"))


@asynccontextmanager
async def serve_process(
    upstream: RawUpstream, folder: Path, *, allow: Sequence[str] = (), **sections: Any
) -> AsyncIterator[ServeProcess]:
    """Start the command as a user does and wait until it listens; killed with the block."""
    table = {
        "base_url": upstream.url,
        "api_key": "env:SERVER_KEY",
        "idle_timeout_s": LATE_S,
    }
    config: dict[str, Any] = {
        "server": {"port": 0, **sections.pop("server", {})},
        "upstreams.default": table,
        "policy": {"allow": list(allow)},
        "limits": {"requests": ["1000000/minute"], "concurrent_streams": 2000},
        "store": {"url": f"sqlite:///{folder}/record.db"},
        "auth": {"mode": "open"},
        **sections,
    }
    file = folder / "toolrelay.toml"
    file.write_text("".join(_toml(name, values) for name, values in config.items()), "utf-8")
    log = folder / "log"
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "SERVER_KEY": SERVER_KEY}
    with log.open("wb") as complaints:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "proxy", "serve", "--config", str(file)),
            cwd=folder,
            env=environment,
            stdout=asyncio.subprocess.PIPE,
            stderr=complaints,
        )
    try:
        assert process.stdout is not None
        line = await process.stdout.readline()
        found = re.search(rb"http://127\.0\.0\.1:(\d+)", line)
        assert found, line + log.read_bytes()
        services: Any = None
        yield ServeProcess(int(found[1]), services, process, folder, log)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def _toml(name: str, values: dict[str, Any]) -> str:
    return f"[{name}]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items())
