"""Servers of a test's own, which it may stop as a machine stops that has lost its disk or its scheduler."""

import asyncio
import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from process_tree import children
from require import require
from waiting import until

__all__ = ["frozen", "own_postgres", "own_redis"]


@contextmanager
def frozen(pid: int) -> Iterator[None]:
    """A server and what it has started stand still: connections stay, and nobody answers on them."""
    stopped: list[int] = []
    while fresh := [one for one in (pid, *children(pid)) if one not in stopped]:
        for one in fresh:
            os.kill(one, signal.SIGSTOP)
        stopped += fresh
    try:
        yield
    finally:
        for one in stopped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(one, signal.SIGCONT)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        return int(one.getsockname()[1])


@asynccontextmanager
async def _running(command: Sequence[str], port: int, user: str | None) -> AsyncIterator[int]:
    """A server that listens; its process id."""
    process = await asyncio.create_subprocess_exec(
        *command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, user=user
    )

    async def listens() -> bool:
        assert process.returncode is None, f"{command[0]} did not start"
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            return False
        writer.close()
        return True

    try:
        await until(listens)
        yield process.pid
    finally:
        process.send_signal(signal.SIGQUIT)
        await process.wait()


def _binary(name: str) -> str:
    """Where a server's program is; empty where there is none."""
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return shutil.which(name, path=os.pathsep.join([*map(str, folders), os.environ.get("PATH", "")])) or ""


@asynccontextmanager
async def own_postgres() -> AsyncIterator[tuple[str, int]]:
    """A PostgreSQL: its URL and its process id.  It runs as another user where this one is root."""
    initdb, server = _binary("initdb"), _binary("postgres")
    require("postgres", bool(initdb and server), "PostgreSQL's initdb is not installed")
    user: str | None = None
    if os.geteuid() == 0:
        known = {each.pw_name for each in pwd.getpwall()}
        require("postgres", "postgres" in known, "PostgreSQL does not run as root, and has no user here")
        user = "postgres"
    folder = Path(tempfile.mkdtemp(prefix="toolrelay-postgres-"))
    try:
        if user is not None:
            shutil.chown(folder, user)
        data, port = folder / "data", _free_port()
        await asyncio.to_thread(
            subprocess.run,
            [initdb, "-D", str(data), "-U", "postgres", "-A", "trust", "--no-sync", "-E", "UTF8"],
            check=True,
            stdout=subprocess.DEVNULL,
            user=user,
            cwd=folder,
        )
        command = [server, "-D", str(data), "-p", str(port), "-k", str(folder), "-h", "127.0.0.1", "-F"]
        async with _running(command, port, user) as pid:
            yield f"postgresql://postgres@127.0.0.1:{port}/postgres", pid
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@asynccontextmanager
async def own_redis(folder: Path) -> AsyncIterator[tuple[str, int]]:
    """A Redis: its URL and its process id."""
    server = _binary("redis-server")
    require("redis", bool(server), "redis-server is not installed")
    port = _free_port()
    command = [server, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder)]
    async with _running(command, port, None) as pid:
        yield f"redis://127.0.0.1:{port}/0", pid
