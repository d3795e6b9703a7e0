"""The command ``serve`` as a process of its own, beside an upstream in the test's event loop."""

import asyncio
import contextlib
import json
import os
import re
import signal
import sqlite3
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from running_proxy import ProxyAddress
from waiting import PATIENCE_S, until

__all__ = ["ProxyProcess", "serving", "write_config"]

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
"""A tool with an effect that waits for a file, since the test is in another process."""


def write_config(
    folder: Path, upstream: str, *, allow: tuple[str, ...] = (), more: str = "", **server: Any
) -> None:
    """A configuration in ``folder``: one upstream, the effect tool, ``server`` settings, ``more`` TOML.

    It is open unless ``more`` says who comes in.
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
    """A running command.  ``lines`` is what it said, ``log`` what it logged, up to now."""

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
        """Wait until that many lines of output or log fit; the last of them.

        Fails with all that was said where the command ends without, or does not say it in time.
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
        """Send a signal."""
        self.process.send_signal(number)

    async def leaves(self) -> None:
        """Wait until the order to end is with the worker: ``/readyz`` says no."""

        async def draining() -> bool:
            return (await self.ask(method="GET", path="/readyz")).status == 503

        await until(draining)

    async def ended(self) -> int:
        """Wait for the end; its status."""
        async with asyncio.timeout(PATIENCE_S):
            status = await self.process.wait()
            await asyncio.gather(*self._readers)
        return status

    async def appears(self, name: str) -> None:
        """Wait for a file that the effect tool makes."""
        await until((self.folder / name).exists)

    def rows(self, sql: str) -> list[Any]:
        """What the record has on disk."""
        with sqlite3.connect(self.folder / "toolrelay.db") as db:
            return list(db.execute(sql))


@asynccontextmanager
async def serving(
    folder: Path, *arguments: str, env: Mapping[str, str] | None = None, command: str = "serve"
) -> AsyncIterator[ProxyProcess]:
    """Start ``command`` in ``folder`` and wait until it listens; killed at the end if it still runs."""
    clean = {k: v for k, v in os.environ.items() if not k.upper().startswith(("TOOLRELAY_", "OPENAI_"))}
    process = await asyncio.create_subprocess_exec(
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
        running.port = int((await running.says(r"listens on http://127\.0\.0\.1:(\d+)/v1"))[1])
        yield running
    finally:
        if process.returncode is None:
            process.kill()
        await running.ended()
