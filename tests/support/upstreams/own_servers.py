"""Database servers that belong to one test, which may freeze them as if their machine had stopped."""

import asyncio
import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from child_server import child_server, reserved_port
from process_tree import children
from require import require
from waiting import PATIENCE_S

_PGBOUNCER = """\
[databases]
{database} = host={host} port={server_port}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
auth_type = trust
auth_file = {folder}/users
unix_socket_dir =
pool_mode = {mode}
default_pool_size = {size}
"""


@contextmanager
def frozen(pid: int) -> Iterator[None]:
    """Stop a server and its child processes: their connections stay open, and nobody answers on them."""
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


def _binary(name: str) -> str:
    """Return the path of a server's program, or an empty string if there is none."""
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return shutil.which(name, path=os.pathsep.join([*map(str, folders), os.environ.get("PATH", "")])) or ""


@asynccontextmanager
async def own_postgres() -> AsyncIterator[tuple[str, int]]:
    """Run PostgreSQL, and yield its URL and its process id.

    PostgreSQL refuses to run as root: if the test runs as root, the server runs as the user ``postgres``.
    """
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
        data = folder / "data"
        await asyncio.to_thread(
            subprocess.run,
            [initdb, "-D", str(data), "-U", "postgres", "-A", "trust", "--no-sync", "-E", "UTF8"],
            check=True,
            stdout=subprocess.DEVNULL,
            user=user,
            cwd=folder,
        )
        with reserved_port() as port:
            command = [server, "-D", str(data), "-p", str(port), "-k", str(folder), "-h", "127.0.0.1", "-F"]
            async with child_server(*command, port=port, user=user, stop=signal.SIGQUIT) as pid:
                yield f"postgresql://postgres@127.0.0.1:{port}/postgres", pid
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@asynccontextmanager
async def pgbouncer(server: str, mode: str, size: int = 20) -> AsyncIterator[str]:
    """Run PgBouncer before the PostgreSQL server of a URL, and yield the URL through it.

    All else is its default, so it knows only the start-up parameters that it knows by itself.
    """
    program = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin:/usr/local/sbin") or ""
    require("pgbouncer", bool(program), "pgbouncer is not installed")
    parts = urlsplit(server)
    database = parts.path.lstrip("/")
    folder = Path(tempfile.mkdtemp(prefix="toolrelay-pgbouncer-"))
    # PgBouncer does not run as root either.
    user = "postgres" if os.geteuid() == 0 else None
    try:
        with reserved_port() as port:
            users = folder / "users"
            users.write_text(f'"{parts.username}" "{parts.password or ""}"\n')
            config = folder / "pgbouncer.ini"
            config.write_text(
                _PGBOUNCER.format(
                    database=database,
                    host=parts.hostname,
                    server_port=parts.port or 5432,
                    port=port,
                    folder=folder,
                    mode=mode,
                    size=size,
                )
            )
            for path in (folder, users, config):
                if user is not None:
                    shutil.chown(path, user)
            async with child_server(program, "-q", str(config), port=port, user=user, stop=signal.SIGTERM):
                query = f"?{parts.query}" if parts.query else ""
                yield f"postgresql://{parts.username}@127.0.0.1:{port}/{database}{query}"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@asynccontextmanager
async def own_redis(folder: Path, *options: str) -> AsyncIterator[tuple[str, int]]:
    """Run Redis with these options, and yield its URL and its process id."""
    server = _binary("redis-server")
    require("redis", bool(server), "redis-server is not installed")
    with reserved_port() as port:
        more = ("--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder))
        # A configuration file, and the words that go with it, come first.
        async with child_server(server, *options, *more, port=port) as pid:
            yield f"redis://127.0.0.1:{port}/0", pid


@asynccontextmanager
async def own_cluster(folder: Path) -> AsyncIterator[int]:
    """Run a Redis cluster of one node, and yield its port."""
    from redis.asyncio import Redis

    with reserved_port() as bus:
        options = ("--save", "", "--cluster-enabled", "yes", "--cluster-port", str(bus))
        async with own_redis(folder, *options) as (url, _), Redis.from_url(url) as made:
            client: Any = made
            await client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
            async with asyncio.timeout(PATIENCE_S):
                while "cluster_state:ok" not in str(await client.execute_command("CLUSTER", "INFO")):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            yield urlsplit(url).port or 0


@asynccontextmanager
async def own_sentinel(folder: Path, watched: int, name: str) -> AsyncIterator[int]:
    """Run a Sentinel that watches the Redis at a port under a name, and yield its own port."""
    written = folder / "sentinel.conf"
    written.write_text(f"sentinel monitor {name} 127.0.0.1 {watched} 1\n")
    async with own_redis(folder, str(written), "--sentinel") as (url, _):
        yield urlsplit(url).port or 0
