"""Runs the command ``serve`` in a separate process; its upstream runs in the test's event loop."""

import asyncio
import contextlib
import json
import os
import re
import signal
import sqlite3
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from running_proxy import ProxyAddress
from waiting import PATIENCE_S, until

EFFECT = '''
import asyncio
from pathlib import Path
from proxy.tools import Redaction, tool

@tool(effect="external_side_effect", timeout_s=60, redaction=Redaction(output=("done",)))
async def act() -> dict[str, bool]:
    """Change the world when the test says so."""
    Path("started").touch()
    while not Path("go").exists():
        await asyncio.sleep(0.01)
    return {"done": True}
'''
"""A tool with a side effect that waits for a file, because the test is in another process."""


def write_config(
    folder: Path, upstream: str, *, allow: tuple[str, ...] = (), more: str = "", **server: Any
) -> None:
    """Write a configuration into ``folder``: one upstream, the tool, ``server`` settings, and ``more`` TOML.

    The proxy needs no authentication unless ``more`` configures it.
    """
    if "[auth]" not in more and "[keys" not in more:
        more += '[auth]\nmode = "open"\n'
    (folder / "effect.py").write_text(EFFECT)
    settings = "".join(f"{name} = {json.dumps(value)}\n" for name, value in server.items())
    (folder / "toolrelay.toml").write_text(
        f"[server]\nport = 0\n{settings}"
        f'[upstreams.default]\nbase_url = "{upstream}"\napi_key = ""\n'
        f'[tools]\nmodules = ["effect.py"]\n[policy]\nallow = {json.dumps(list(allow))}\n'
        f'[log]\nformat = "json"\n{more}'
    )


class ProxyProcess(ProxyAddress):
    """A running command. ``lines`` is its output up to now, ``log`` its log."""

    def __init__(self, process: asyncio.subprocess.Process, folder: Path) -> None:
        super().__init__(0)
        self.process = process
        self.folder = folder
        self.lines: list[str] = []
        self.log: list[str] = []
        self._news = asyncio.Condition()
        self._over = 0
        assert process.stdout is not None
        assert process.stderr is not None
        self._readers = [
            asyncio.create_task(self._read(process.stdout, self.lines)),
            asyncio.create_task(self._read(process.stderr, self.log)),
        ]

    async def _read(self, stream: asyncio.StreamReader, into: list[str]) -> None:
        async for line in stream:
            async with self._news:
                into.append(line.decode().rstrip("\n"))
                self._news.notify_all()
        async with self._news:
            self._over += 1
            self._news.notify_all()

    async def says(self, pattern: str, times: int = 1) -> re.Match[str]:
        """Wait until that many lines of output or log match; return the last match.

        Fails with all output and log if the command ends first, or if the lines do not come in time.
        """

        def found() -> list[re.Match[str]]:
            return [m for line in (*self.lines, *self.log) if (m := re.search(pattern, line))]

        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_S), self._news:
                await self._news.wait_for(lambda: len(found()) >= times or self._over == 2)
        if len(found()) < times:
            raise AssertionError(f"no {pattern!r} in {self.lines} {self.log}")
        return found()[-1]

    def signal(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Send a signal to the process."""
        self.process.send_signal(number)

    async def leaves(self) -> None:
        """Wait until the worker has got the order to end: ``/readyz`` then answers 503."""

        async def draining() -> bool:
            return (await self.ask(method="GET", path="/readyz")).status == 503

        await until(draining)

    async def ended(self) -> int:
        """Wait for the end of the process, and return its exit status."""
        async with asyncio.timeout(PATIENCE_S):
            status = await self.process.wait()
            await asyncio.gather(*self._readers)
        return status

    async def appears(self, name: str) -> None:
        """Wait for a file that the tool of the configuration makes."""
        await until((self.folder / name).exists)

    def rows(self, sql: str) -> list[Any]:
        """Return the rows that an SQL statement finds in the store on disk."""
        with sqlite3.connect(self.folder / "toolrelay.db") as db:
            return list(db.execute(sql))


@asynccontextmanager
async def serving(
    folder: Path,
    *arguments: str,
    env: Mapping[str, str] | None = None,
    command: str = "serve",
    inside: Sequence[str] = (),
) -> AsyncIterator[ProxyProcess]:
    """Start ``command`` in ``folder`` and wait until it listens; kill it at the end if it still runs.

    ``inside`` is a command that starts it elsewhere, such as in a network namespace.
    """
    clean = {k: v for k, v in os.environ.items() if not k.upper().startswith(("TOOLRELAY_", "OPENAI_"))}
    process = await asyncio.create_subprocess_exec(
        *inside,
        sys.executable,
        "-m",
        "proxy",
        command,
        *arguments,
        cwd=folder,
        env={**clean, **(env or {})},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        limit=1 << 20,
    )
    running = ProxyProcess(process, folder)
    try:
        listens = await running.says(r"listens on http://([\d.]+):(\d+)/v1")
        running.host, running.port = listens[1], int(listens[2])
        yield running
    finally:
        if process.returncode is None:
            process.kill()
        await running.ended()
