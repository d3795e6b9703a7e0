"""A proxy before a faulty upstream, in this process or in a process of its own."""

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
from running_proxy import SERVER_KEY, Answer, Conversation, Proxy, ProxyAddress, make_config, running
from waiting import LATE_S, PATIENCE_S
from wire_kits import Kit

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
    """Run a proxy in this process before an upstream that plays one script per request."""
    config.setdefault("limits", _NO_LIMIT)
    async with RawUpstream(*scripts) as upstream:
        table = {"base_url": upstream.url, **(served or {})}
        async with running(make_config(table, allow=allow, modules=("probe_tools",), **config)) as proxy:
            yield proxy, upstream


async def ask(proxy: ProxyAddress, kit: Kit, body: Any = None, headers: Any = (), **more: Any) -> Answer:
    """Send one request in the kit's dialect and return its whole response."""
    return await proxy.ask(kit.ask(**more) if body is None else body, headers, path=kit.path)


async def raw(proxy: ProxyAddress, *pieces: bytes, pause_s: float = 0.02) -> tuple[Answer, bytes]:
    """Send bytes unchanged; return one response, and the bytes that follow it.

    Those are read until the connection ends, or until nothing more comes for a moment.
    """
    async with asyncio.timeout(PATIENCE_S), proxy.connect() as conversation:
        for piece in pieces:
            conversation.writer.write(piece)
            await asyncio.sleep(pause_s)
        answer = await conversation.answer()
        return answer, await rest_of(conversation)


async def rest_of(conversation: Conversation, within_s: float = 0.5) -> bytes:
    """Return the bytes that come on a connection until it ends or pauses."""
    try:
        async with asyncio.timeout(within_s):
            return await conversation.reader.read()
    except (TimeoutError, ConnectionError):
        return b""


async def served_next(proxy: ProxyAddress, upstream: RawUpstream, kit: Kit) -> None:
    """Check that the proxy still serves a plain stream after a fault."""
    upstream.scripts = (kit.stream("next"),)
    answer = await ask(proxy, kit)
    assert answer.clean
    assert kit.read(answer.body).text == "next"


def cut(data: bytes, seed: int, pieces: int = 40) -> list[bytes]:
    """Cut the data at random positions of this seed, also within characters and line ends."""
    generator = random.Random(seed)
    places = sorted(generator.sample(range(1, len(data)), min(pieces, len(data) - 1)))
    return [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True)]


@dataclass
class ServeProcess(ProxyAddress):
    """``toolrelay serve`` in a process of its own."""

    process: asyncio.subprocess.Process
    folder: Path
    log: Path

    @property
    def worker(self) -> int:
        """The id of the worker process; ``process`` supervises it."""
        (pid,) = children(self.process.pid)
        return pid

    def kill(self) -> None:
        """Kill both processes with ``kill -9``."""
        kill_tree(self.process.pid)

    def rss(self) -> int:
        """Return the resident memory of the worker process in bytes."""
        pages = Path(f"/proc/{self.worker}/statm").read_text("ascii").split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def fds(self) -> int:
        """Return the number of open file descriptors of the worker process."""
        return len(os.listdir(f"/proc/{self.worker}/fd"))


@asynccontextmanager
async def serve_process(
    upstream: RawUpstream, folder: Path, *, allow: Sequence[str] = (), **sections: Any
) -> AsyncIterator[ServeProcess]:
    """Start the command as a user does, wait until it listens, and kill it at the end."""
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
        yield ServeProcess(int(found[1]), process, folder, log)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def _toml(name: str, values: dict[str, Any]) -> str:
    return f"[{name}]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items())
