"""``python -m bench.history``: what it costs to put hidden turns back, for one client and for many at once.

Each client has a conversation of its own, whose first answer took a tool call that the client has not seen.
It then sends that conversation again and again. Each of these requests looks the hidden turn up.
"""

import argparse
import asyncio
import contextlib
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp
import orjson

from bench.contestants import INSTRUMENT_CORE, PROXY_CORE, toolrelay
from bench.processes import Process, free_port, python, started
from bench.wire import KEY, Plan

_RESTORED: Final = "x-toolrelay-restored"
_LOST: Final = "toolrelay_store_lost_writes_total"
_ADMIN: Final = "an-administrator-of-the-benchmark"
_SCRAPER: Final = {"Authorization": f"Bearer {_ADMIN}"}
_MORE: Final = '[keys.admin]\nsecret = "env:BENCH_ADMIN"\nadmin = true\n'
_SETTLE_S: Final = 2.0
"""Seconds in which all queued writes are committed."""


@dataclass
class Row:
    """What one number of clients came to."""

    clients: int
    requests: int = 0
    restored: int = 0
    failed: int = 0
    lost: int = 0
    wall_s: float = 0.0
    cpu_s: float = 0.0

    def __str__(self) -> str:
        return (
            f"{self.clients:>7} {self.requests:>8} {self.requests / self.wall_s:>10.0f} "
            f"{1e6 * self.cpu_s / self.requests:>11.0f} {self.requests - self.restored:>12} {self.failed:>6} "
            f"{self.lost:>11}"
        )


class Client:
    """One client and its conversation."""

    def __init__(self, session: aiohttp.ClientSession, port: int, name: str) -> None:
        self._session = session
        self._url = f"http://127.0.0.1:{port}/v1/chat/completions"
        self._said: list[dict[str, str]] = [{"role": "user", "content": f"I am {name}. Go on."}]

    async def ask(self) -> tuple[int, bool, str]:
        """Return the status, whether a hidden turn was put back, and the text."""
        body = {"model": Plan("tool").model, "stream": True, "messages": self._said}
        async with self._session.post(self._url, json=body) as answer:
            data = await answer.read()
        events = [line[6:] for line in data.split(b"\n") if line.startswith(b"data: {")]
        text = "".join(_text(orjson.loads(event)) for event in events)
        return answer.status, _RESTORED in answer.headers, text

    async def begin(self) -> None:
        """Ask the first question; raises RuntimeError if it is not answered."""
        status, _, text = await self.ask()
        if status != 200 or not text:
            raise RuntimeError(f"the first question got {status}: {text!r}")
        self._said += [{"role": "assistant", "content": text}, {"role": "user", "content": "And now?"}]


def _text(event: Any) -> str:
    return "".join(choice["delta"].get("content") or "" for choice in event.get("choices", ()))


async def measure(proxy: Process, clients: int, each: int) -> Row:
    """Return what ``each`` requests of every client came to."""
    row = Row(clients)
    timeout = aiohttp.ClientTimeout(total=120)
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        headers={"Authorization": f"Bearer {KEY}"},
        timeout=timeout,
    ) as session:
        talking = [Client(session, proxy.port, f"{clients}-{at}") for at in range(clients)]
        for at in range(0, clients, 16):
            await asyncio.gather(*(one.begin() for one in talking[at : at + 16]))
        await asyncio.sleep(_SETTLE_S)

        async def work(client: Client) -> None:
            for _ in range(each):
                status, restored, _ = await client.ask()
                row.requests += 1
                row.restored += restored
                row.failed += status != 200

        cpu, began = proxy.cpu_s(), time.monotonic()
        await asyncio.gather(*map(work, talking))
        row.wall_s, row.cpu_s = time.monotonic() - began, proxy.cpu_s() - cpu
        row.lost = await lost_writes(session, proxy.port)
    return row


async def lost_writes(session: aiohttp.ClientSession, port: int) -> int:
    """Return how many writes to the record the proxy has lost since its start."""
    async with session.get(f"http://127.0.0.1:{port}/metrics", headers=_SCRAPER) as answer:
        lines = (await answer.text()).splitlines()
    return int(sum(float(line.split()[-1]) for line in lines if line.startswith(_LOST)))


@contextlib.contextmanager
def served(folder: Path, workers: int, url: str) -> Iterator[Process]:
    """Run the upstream and a proxy; ``url`` is the address of its record, a file if it is empty."""
    port = free_port()
    mock = python("-m", "bench.mock", str(port))
    sealed = {"TOOLRELAY_STORE__SEAL_KEY": "env:BENCH_SEAL", "BENCH_SEAL": "1f" * 32}
    env = {"BENCH_ADMIN": _ADMIN}
    if url:
        env |= {"TOOLRELAY_STORE__URL": url, **sealed}
    with (
        started("mock", port, mock, folder / "mock.log", core=INSTRUMENT_CORE),
        toolrelay(
            "proxy", folder, port, tools=True, core=PROXY_CORE, workers=workers, more=_MORE, env=env
        ) as proxy,
    ):
        yield proxy


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; return 1 if a turn was not put back, a request failed, or a write was lost."""
    parser = argparse.ArgumentParser("bench.history", description="Measure conversations with hidden turns.")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 64, 250])
    parser.add_argument("--requests", type=int, default=2000, help="requests for each number of clients")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--url", default="", help="the address of a record in PostgreSQL; default: SQLite")
    wanted = parser.parse_args(arguments)
    print(
        f"{'clients':>7} {'requests':>8} {'requests/s':>10} {'CPU us each':>11} {'not put back':>12} failed "
        "lost writes"
    )
    good = True
    with (
        tempfile.TemporaryDirectory() as folder,
        served(Path(folder), wanted.workers, wanted.url) as proxy,
    ):
        os.sched_setaffinity(0, {INSTRUMENT_CORE} & os.sched_getaffinity(0) or os.sched_getaffinity(0))
        for clients in wanted.clients:
            row = asyncio.run(measure(proxy, clients, -(-wanted.requests // clients)))
            print(row, flush=True)
            good = good and not row.failed and not row.lost and row.restored == row.requests
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
