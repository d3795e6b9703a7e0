"""A record that is busy, on a machine that is slowed by other work, is a healthy record."""

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator

import pytest
from store_postgres import need_postgres, new_schema

from bench.contestants import PROXY_CORE

pytestmark = pytest.mark.slow

_BUSY = """\
import os
os.sched_setaffinity(0, {%d} & os.sched_getaffinity(0) or os.sched_getaffinity(0))
while True:
    pass
"""


@contextlib.asynccontextmanager
async def slowed() -> AsyncIterator[None]:
    """Use the proxy's core for something else, twice, so that the proxy gets a third of it."""
    code = _BUSY % PROXY_CORE
    others = [await asyncio.create_subprocess_exec(sys.executable, "-c", code) for _ in range(2)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            await other.wait()


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_every_hidden_turn_of_250_clients_comes_back(kind: str, workers: int) -> None:
    """Of 250 clients that continue their conversations at once, each gets its hidden turn back, no request
    fails, and no write of the record is lost."""
    async with contextlib.AsyncExitStack() as stack:
        more: list[str] = []
        if kind == "postgres":
            need_postgres()
            more = ["--url", await stack.enter_async_context(new_schema())]
        await stack.enter_async_context(slowed())
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "bench.history", "--clients", "250", "--requests", "500"),
            *("--workers", str(workers), *more),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={name: value for name, value in os.environ.items() if not name.startswith("TOOLRELAY_")},
        )
        output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()
