"""The disk of the record stands still, for real: a file system whose server is stopped (FUSE).

Every read, write and sync of the file waits in the kernel meanwhile, in whichever thread asks for it.
"""

import asyncio
import os
import shutil
import signal
import sqlite3
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from chat_script import payloads_of, text_of
from looping import ANSWER, ASK, TIME, called
from proxy_process import ProxyProcess, serving, write_config
from raw_upstream import RawUpstream
from require import require
from waiting import PATIENCE_S, until

pytestmark = pytest.mark.slow

CALL = called(("call_s", TIME, '{"timezone":"UTC"}'))
LATER: dict[str, Any] = {
    **ASK,
    "messages": [
        *ASK["messages"],
        {"role": "assistant", "content": "It is noon."},
        {"role": "user", "content": "And now?"},
    ],
}


class Disk:
    """A folder on a file system of its own, which can be stopped."""

    def __init__(self, folder: Path, below: "subprocess.Popen[bytes]") -> None:
        self.folder = folder
        self._below = below

    def freeze(self) -> None:
        """From now on nothing that is asked of it comes back."""
        os.kill(self._below.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """It goes on where it stood."""
        os.kill(self._below.pid, signal.SIGCONT)


@contextmanager
def mounted(behind: Path, folder: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """``behind``, shown at ``folder`` by a process of ``bindfs``."""
    folder.mkdir()
    process = subprocess.Popen(["bindfs", "-f", str(behind), str(folder)])
    try:
        began = time.monotonic()
        while not folder.is_mount():
            assert process.poll() is None, "bindfs could not mount"
            assert time.monotonic() - began < PATIENCE_S
            time.sleep(0.01)
        yield process
    finally:
        # What waits for it gets an error then, and can end.
        process.kill()
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
        process.wait()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    """A file system over another one, which is the one that is stopped.

    The upper one takes each request and waits for the lower one.  Linux lets nobody be killed who waits for
    a request that was taken; one that waits in the queue of a stopped file system can be.
    """
    able = shutil.which("bindfs") and os.access("/dev/fuse", os.R_OK | os.W_OK) and os.geteuid() == 0
    require("bindfs", bool(able), "this needs bindfs(1) and /dev/fuse, as root")
    behind = tmp_path / "behind"
    behind.mkdir()
    with mounted(behind, tmp_path / "below") as below, mounted(tmp_path / "below", tmp_path / "disk"):
        try:
            yield Disk(tmp_path / "disk", below)
        finally:
            below.kill()  # First, for the upper one may be waiting for it.


@asynccontextmanager
async def served(
    tmp_path: Path, disk: Disk, *scripts: Any
) -> AsyncIterator[tuple[ProxyProcess, RawUpstream]]:
    """``serve`` with its record on that disk, before an upstream that plays these turns."""
    async with RawUpstream(*scripts) as upstream:
        store = f'[store]\nurl = "sqlite:///{disk.folder}/toolrelay.db"\n[auth]\nmode = "open"\n'
        write_config(tmp_path, upstream.url, allow=(TIME,), more=store, drain_s=2)
        async with serving(tmp_path) as running:
            yield running, upstream


async def asked(running: ProxyProcess, body: Any = ASK) -> str:
    """The text of an answer, which does not wait for the disk: a frozen one never answers."""
    async with asyncio.timeout(PATIENCE_S):
        answer = await running.ask(body)
    assert answer.status == 200, answer.body
    return text_of(payloads_of(answer.body))


async def status_of(running: ProxyProcess, path: str) -> int:
    async with asyncio.timeout(PATIENCE_S):
        return (await running.ask(method="GET", path=path)).status


async def test_requests_are_answered_while_the_disk_stands_still(tmp_path: Path, disk: Disk) -> None:
    """Rule R1: what needs no record is answered, what needs it is told so; afterwards all is there."""
    scripts = [CALL, ANSWER] * 4
    async with served(tmp_path, disk, *scripts) as (running, _):
        assert await asked(running) == "It is noon."
        await until(lambda: _runs(disk, 1))
        disk.freeze()
        try:
            assert await asked(running) == "It is noon."
            assert await asked(running, LATER) == "It is noon."
            assert await status_of(running, "/v1/responses/resp_tr_1") == 503
            assert await status_of(running, "/readyz") == 503
            assert await status_of(running, "/healthz") == 200
            assert await status_of(running, "/metrics") == 200
        finally:
            disk.thaw()
        assert await asked(running) == "It is noon."
        # What was done meanwhile is on record as well.
        await until(lambda: _runs(disk, 4))


async def _has_ended(running: ProxyProcess) -> bool:
    return running.process.returncode is not None


async def _runs(disk: Disk, count: int) -> bool:
    """Whether so many runs are on record with their end."""

    def finished() -> int:
        # Closed here: a connection that the collector closes later would wait for a disk that stands still.
        with closing(sqlite3.connect(f"file:{disk.folder}/toolrelay.db?mode=ro", uri=True)) as db:
            (found,) = db.execute("SELECT count(*) FROM runs WHERE status = 'completed'").fetchone()
            return int(found)

    return await asyncio.to_thread(finished) == count


async def test_a_stop_does_not_wait_for_the_disk(tmp_path: Path, disk: Disk) -> None:
    """SIGTERM ends the command, which says what the record has lost, though no process can be killed that
    waits for a disk."""
    async with served(tmp_path, disk, CALL, ANSWER, CALL, ANSWER) as (running, _):
        assert await asked(running) == "It is noon."
        await until(lambda: _runs(disk, 1))
        disk.freeze()
        try:
            assert await asked(running) == "It is noon."
            running.signal()
            # Its output stays open, for the process that is stuck has it, too.
            await until(lambda: _has_ended(running))
            assert running.process.returncode == 0
            await running.says("did not close within")
            await running.says("worker_stuck")
        finally:
            disk.thaw()
    async with served(tmp_path, disk, ANSWER) as (again, _):
        assert await asked(again) == "It is noon."
        # What was on record before is there, and what was said to be lost is not.
        await until(lambda: _runs(disk, 2))
