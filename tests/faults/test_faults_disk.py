"""The record's disk stops responding: a FUSE file system whose server process is stopped.

Every read, write and sync of the file then waits in the kernel, in the thread that asks for it.
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
from process_tree import children
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
    """A folder on a file system that can be stopped."""

    def __init__(self, folder: Path, below: "subprocess.Popen[bytes]") -> None:
        self.folder = folder
        self._below = below

    def freeze(self) -> None:
        """Stop the file system: no operation on it returns."""
        os.kill(self._below.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Let the file system continue."""
        os.kill(self._below.pid, signal.SIGCONT)


@contextmanager
def mounted(behind: Path, folder: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """Mount ``behind`` at ``folder`` with a process of ``bindfs``."""
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
        # Waiting operations then get an error and can end.
        process.kill()
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
        process.wait()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    """A file system on top of another one, which can be stopped.

    The upper one accepts each request and waits for the lower one. Linux cannot kill a process that waits
    for an accepted request, but it can kill one that waits in the queue of a stopped file system.
    """
    able = shutil.which("bindfs") and os.access("/dev/fuse", os.R_OK | os.W_OK) and os.geteuid() == 0
    require("bindfs", bool(able), "this needs bindfs(1) and /dev/fuse, as root")
    behind = tmp_path / "behind"
    behind.mkdir()
    with mounted(behind, tmp_path / "below") as below, mounted(tmp_path / "below", tmp_path / "disk"):
        try:
            yield Disk(tmp_path / "disk", below)
        finally:
            below.kill()  # The lower one first: the upper one may wait for it.


@asynccontextmanager
async def served(
    tmp_path: Path, disk: Disk, *scripts: Any
) -> AsyncIterator[tuple[ProxyProcess, RawUpstream]]:
    """Run ``serve`` with its record on this disk, in front of an upstream that plays these turns."""
    async with RawUpstream(*scripts) as upstream:
        store = f'[store]\nurl = "sqlite:///{disk.folder}/toolrelay.db"\n[auth]\nmode = "open"\n'
        write_config(tmp_path, upstream.url, allow=(TIME,), more=store, drain_s=2, ready_needs_record=True)
        async with serving(tmp_path) as running:
            yield running, upstream


async def asked(running: ProxyProcess, body: Any = ASK) -> str:
    """Return the text of an answer, which must not depend on the frozen disk."""
    async with asyncio.timeout(PATIENCE_S):
        answer = await running.ask(body)
    assert answer.status == 200, answer.body
    return text_of(payloads_of(answer.body))


async def status_of(running: ProxyProcess, path: str) -> int:
    async with asyncio.timeout(PATIENCE_S):
        return (await running.ask(method="GET", path=path)).status


async def test_requests_are_answered_while_the_disk_stands_still(tmp_path: Path, disk: Disk) -> None:
    """Rule R1: while the disk is frozen, requests that need no record are served and others get 503; the
    record is completed later."""
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
        # The runs in between are on record, too.
        await until(lambda: _runs(disk, 4))


async def _has_ended(running: ProxyProcess) -> bool:
    return running.process.returncode is not None


async def _runs(disk: Disk, count: int) -> bool:
    """Say whether exactly so many completed runs are on record."""

    def finished() -> int:
        # It is closed here: the garbage collector might close it later and wait for a frozen disk.
        with closing(sqlite3.connect(f"file:{disk.folder}/toolrelay.db?mode=ro", uri=True)) as db:
            (found,) = db.execute("SELECT count(*) FROM runs WHERE status = 'completed'").fetchone()
            return int(found)

    return await asyncio.to_thread(finished) == count


def _any_left(processes: list[int]) -> bool:
    return any(Path(f"/proc/{pid}").exists() for pid in processes)


async def test_a_stop_does_not_wait_for_the_disk(tmp_path: Path, disk: Disk) -> None:
    """At SIGTERM, the command ends and reports what the record has lost, although a process that waits for
    the disk cannot be killed."""
    async with served(tmp_path, disk, CALL, ANSWER, CALL, ANSWER) as (running, _):
        assert await asked(running) == "It is noon."
        await until(lambda: _runs(disk, 1))
        disk.freeze()
        try:
            assert await asked(running) == "It is noon."
            workers = children(running.process.pid)
            running.signal()
            # Its output stays open, as the stuck process has it, too.
            await until(lambda: _has_ended(running))
            assert running.process.returncode == 0
            await running.says("did not close within")
            # A wait that the file system has not begun to answer ends with its process.
            if _any_left(workers):
                await running.says("worker_stuck")
        finally:
            disk.thaw()
    async with served(tmp_path, disk, ANSWER) as (again, _):
        assert await asked(again) == "It is noon."
        # The earlier run is on record, and the one reported as lost is not.
        await until(lambda: _runs(disk, 2))
