"""What servers leave behind is ended; a server that is just being started is not taken for it."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from waiting import until

from proxy.tools.mcp.host import left_behind
from proxy.tools.mcp.host.left_behind import MARK, Groups, LeftBehind

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has subreapers")

Start = Callable[[dict[str, str]], "subprocess.Popen[bytes]"]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Return a function that starts a process with this environment; only such processes are children."""
    listed = tmp_path / "task/1/children"
    listed.parent.mkdir(parents=True)
    monkeypatch.setattr(left_behind, "_SELF", tmp_path)
    monkeypatch.setattr(left_behind, "adopt_orphans", lambda: None)
    started: list[subprocess.Popen[bytes]] = []

    def begin(environment: dict[str, str]) -> "subprocess.Popen[bytes]":
        started.append(subprocess.Popen(["/bin/sleep", "3600"], env=environment))
        listed.write_text(" ".join(str(one.pid) for one in started))
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.wait()


def runs(process: "subprocess.Popen[bytes]") -> bool:
    """Return whether a process ran until now, and end it."""
    process.terminate()
    return process.wait() == -signal.SIGTERM


async def test_a_server_that_is_being_started_is_not_ended(start: Start) -> None:
    """A child whose group is not known yet, and whose environment is not its own yet, is left alone."""
    groups = Groups(lambda runs: None)
    async with groups.starting:
        server = start({})
        ending = asyncio.create_task(LeftBehind(groups).end_all())
        for _ in range(10):
            await asyncio.sleep(0)
        groups.marks[server.pid] = "new"
    await ending
    assert runs(server)


async def test_a_child_of_no_running_server_is_ended(start: Start) -> None:
    """A child with the mark of a server that has ended, or with none, is ended; others go on."""
    left, hidden, kept = start({MARK: "old"}), start({}), start({MARK: "new"})
    groups = Groups(lambda runs: None, {1: "new"})
    LeftBehind(groups).server_ended()
    await until(lambda: left.poll() is not None and hidden.poll() is not None)
    assert runs(kept)
