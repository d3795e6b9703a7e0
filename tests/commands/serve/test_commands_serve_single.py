"""By default, ``serve`` runs one worker under a supervisor; it is replaced and stopped like several."""

import asyncio
import os
import pty
import signal
import socket
import subprocess
import sys
import termios
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from fcntl import ioctl
from pathlib import Path
from typing import Any

import pytest
from chat_script import DONE, content, finish, role, stream
from child_server import reserved_port
from process_tree import children
from proxy_process import ProxyProcess, serving, write_config
from raw_upstream import KEEP, LAST_CHUNK, RawUpstream, Step, chunk, head
from waiting import PATIENCE_S, until

ASK = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "hi"}]}
HELLO = stream(role(), content("Hello."), finish())
BEGUN = head("Content-Type: text/event-stream", "Transfer-Encoding: chunked")
SLOW = role() + content("x") + finish() + DONE


def slow(going: asyncio.Event) -> list[Step]:
    """A stream that goes on when the test says so."""
    return [BEGUN, chunk(role()), going, chunk(content("x") + finish() + DONE), LAST_CHUNK, KEEP]


@asynccontextmanager
async def single(
    folder: Path, *scripts: Sequence[Step], **server: Any
) -> AsyncIterator[tuple[ProxyProcess, RawUpstream]]:
    """Run ``serve`` with the default number of workers in front of a scripted upstream."""
    async with RawUpstream(*scripts) as upstream:
        write_config(folder, upstream.url, **server)
        async with serving(folder) as proxy:
            yield proxy, upstream


def state(pid: int) -> str:
    """Return a process's state as ``ps`` shows it; empty if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return ""


async def kill_supervisor(proxy: ProxyProcess) -> None:
    """Kill it and poll until it is gone: ``wait`` would wait for pipes that its worker holds."""
    proxy.process.kill()
    await until(lambda: state(proxy.process.pid) in ("", "Z"))


async def test_a_hang_up_cuts_no_stream_and_puts_a_new_worker_in_place(tmp_path: Path) -> None:
    """At SIGHUP, a new worker serves, the open stream ends whole, and the address is printed only once."""
    going = asyncio.Event()
    async with single(tmp_path, slow(going), HELLO) as (proxy, upstream):
        async with proxy.sent(ASK) as streaming:
            await upstream.asked(1)
            (first,) = children(proxy.process.pid)
            proxy.signal(signal.SIGHUP)
            await proxy.says("restarted: 1 new worker serves")
            assert (await proxy.ask(ASK)).status == 200
            going.set()
            answer = await streaming.answer()
            assert (answer.clean, answer.body) == (True, SLOW)
        await until(lambda: first not in children(proxy.process.pid))
        assert len(children(proxy.process.pid)) == 1
        assert sum("listens on" in line for line in proxy.lines) == 1
        assert not any('"worker":' in line for line in proxy.log if '"event":"request"' in line)
        proxy.signal()
        assert await proxy.ended() == 0


async def test_a_worker_that_is_killed_is_started_again_on_the_same_port(tmp_path: Path) -> None:
    """After the only worker is killed, a request waits until the next worker answers it."""
    async with single(tmp_path, HELLO) as (proxy, _):
        os.kill(children(proxy.process.pid)[0], signal.SIGKILL)
        await proxy.says('"event":"worker_died"')
        assert (await proxy.ask(ASK)).status == 200
        await proxy.says('"event":"worker_started"')
        proxy.signal()
        assert await proxy.ended() == 0


@pytest.fixture
def place() -> Iterator[tuple[str, str]]:
    """Yield options with a reserved port, which two servers can use one after the other."""
    with reserved_port() as port:
        yield "--port", str(port)


@pytest.mark.parametrize("workers", [1, 2])
async def test_the_workers_of_a_killed_supervisor_close_the_port_first(
    tmp_path: Path, workers: int, place: tuple[str, str]
) -> None:
    """After ``kill -9`` of the supervisor, another server gets the port while the open stream runs on."""
    going = asyncio.Event()
    more = "[limits]\nrequests = []\ntool_calls = []\n"
    async with RawUpstream(slow(going), HELLO) as upstream:
        write_config(tmp_path, upstream.url, more=more, workers=workers)
        async with serving(tmp_path, *place) as proxy, proxy.sent(ASK) as streaming:
            await upstream.asked(1)
            left = children(proxy.process.pid)
            await kill_supervisor(proxy)

            async def free() -> bool:
                with socket.socket() as probe:
                    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    return probe.connect_ex(("127.0.0.1", proxy.port)) != 0

            await until(free)
            assert any(state(pid) not in ("", "Z") for pid in left)
            async with serving(tmp_path, *place) as again:
                assert again.port == proxy.port
                assert (await again.ask(ASK)).status == 200
                going.set()
                answer = await streaming.answer()
                assert (answer.clean, answer.body) == (True, SLOW)
                await until(lambda: all(state(pid) in ("", "Z") for pid in left))
                again.signal()
                assert await again.ended() == 0


DIES_ONCE = """
import os, signal
try:
    os.close(os.open("died", os.O_CREAT | os.O_EXCL))
except FileExistsError:
    pass
else:
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("workers", [2, 3])
async def test_a_worker_that_dies_in_the_first_start_is_started_again(tmp_path: Path, workers: int) -> None:
    """If a worker dies during the start, the others serve, and another worker replaces it."""
    more = "[limits]\nrequests = []\ntool_calls = []\n"
    async with RawUpstream(HELLO) as upstream:
        write_config(tmp_path, upstream.url, more=more, workers=workers)
        effect = tmp_path / "effect.py"
        effect.write_text(DIES_ONCE + effect.read_text())
        async with serving(tmp_path) as proxy:
            await proxy.says('"event":"worker_failed"')
            assert (await proxy.ask(ASK)).status == 200
            await proxy.says('"event":"worker_started"')
            assert len(children(proxy.process.pid)) == workers
            proxy.signal()
            assert await proxy.ended() == 0


async def test_a_port_that_is_taken_says_by_whom(tmp_path: Path) -> None:
    """If the port is in use, the error names the other server's supervisor, or its worker if that is left."""
    async with single(tmp_path, HELLO) as (proxy, _):

        async def complaint() -> str:
            command = (sys.executable, "-m", "proxy", "serve", "--port", str(proxy.port))
            second = await asyncio.create_subprocess_exec(
                *command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
            _, errors = await second.communicate()
            assert second.returncode == 1
            return errors.decode()

        pid = proxy.process.pid
        said = await complaint()
        assert f"is in use by another toolrelay (process {pid}). Stop it (kill {pid})" in said
        (worker,) = children(pid)
        # A stopped worker does not notice that its supervisor is gone, and keeps the port.
        os.kill(worker, signal.SIGSTOP)
        await kill_supervisor(proxy)
        try:
            said = await complaint()
        finally:
            os.kill(worker, signal.SIGCONT)
        assert f"by an earlier toolrelay whose supervisor is gone (process {worker})" in said
        assert f"kill -9 {worker}" in said
        await until(lambda: state(worker) in ("", "Z"))


async def test_closing_the_terminal_ends_the_server(tmp_path: Path) -> None:
    """When its terminal closes, the server ends; it does not take that SIGHUP for a reload."""
    ours, theirs = pty.openpty()

    def take_terminal() -> None:
        # nohup, under which the tests may run, has it ignored.
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        os.setsid()
        ioctl(0, termios.TIOCSCTTY, 0)

    write_config(tmp_path, "http://127.0.0.1:9/v1")
    process = subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, "-m", "proxy", "serve"],
        cwd=tmp_path,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        preexec_fn=take_terminal,
    )
    try:
        os.close(theirs)
        said = b""
        while b"record: " not in said:
            said += await asyncio.to_thread(os.read, ours, 65536)
        assert b"listens on" in said
        started = children(process.pid)
        os.close(ours)
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.to_thread(process.wait)
        await until(lambda: all(state(pid) in ("", "Z") for pid in started))
    finally:
        process.kill()
        process.wait()


ORPHAN = """
import subprocess, sys
program = (
    "import os, time; file = open('begun', 'w'); "
    "file.write(str(os.getpid())); file.close(); "
    "os.replace('begun', 'orphan'); time.sleep(0.5)"
)
subprocess.Popen([sys.executable, "-c", program], start_new_session=True)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets a process take in orphans")
async def test_what_becomes_a_child_of_the_supervisor_is_waited_for(tmp_path: Path) -> None:
    """The supervisor reaps orphans that it inherits, as process 1 of a container, and leaves no zombie."""
    write_config(tmp_path, "http://127.0.0.1:9/v1")
    effect = tmp_path / "effect.py"
    effect.write_text(ORPHAN + effect.read_text())
    command = (  # PR_SET_CHILD_SUBREAPER is kept across execve.
        "import ctypes, os, sys; ctypes.CDLL(None).prctl(36, 1, 0, 0, 0); "
        "os.execv(sys.executable, [sys.executable, '-m', 'proxy', 'serve'])"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    proxy = ProxyProcess(process, tmp_path)
    try:
        await proxy.says("listens on")
        await proxy.appears("orphan")
        orphan = int((tmp_path / "orphan").read_text())
        (worker,) = set(children(process.pid)) - {orphan}
        os.kill(worker, signal.SIGKILL)
        await proxy.says('"event":"worker_died"')
        await until(lambda: state(orphan) == "")
        assert worker not in children(process.pid)
        proxy.signal()
        assert await proxy.ended() == 0
    finally:
        if process.returncode is None:
            process.kill()
        await proxy.ended()
