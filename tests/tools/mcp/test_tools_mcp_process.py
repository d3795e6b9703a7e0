"""The process that talks to MCP servers: its calls, its restart, and its clean-up."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from mcp_rig import hosted
from mcp_script import calls_of, scripted, tool_definition
from structlog.testing import capture_logs
from waiting import LATE_S, PATIENCE_S, until

from proxy.base.errors import ConfigError, ToolFailure
from proxy.tools.mcp.host.left_behind import Groups
from proxy.tools.mcp.host.program import _keep
from proxy.tools.mcp.host.service import Service
from proxy.tools.mcp.host_client import HostClient
from proxy.tools.mcp.process import HostProcess
from proxy.tools.mcp.results import read_result
from proxy.tools.mcp.servers import HostSettings, Server

OK = {"result": {"content": [{"type": "text", "text": "fine"}]}}


def runs(pid: int) -> bool:
    """Return whether a process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def test_a_tool_is_called_through_it(tmp_path: Path) -> None:
    """A call through the process returns the server's result; only this user can access its socket."""
    server = scripted(tmp_path, [tool_definition("a")], {"a": OK})
    async with hosted(server) as host:
        found = await host.definitions("toy")
        result = await host.client.call("toy", "a", found["a"].digest, {"x": 1}, LATE_S)
        assert read_result(result).text == "fine"
        assert host.process.path.stat().st_mode & 0o077 == 0
        assert host.process.path.parent.stat().st_mode & 0o077 == 0
    assert not host.process.path.parent.exists()


async def test_a_kill_of_it_leaves_no_orphan_and_no_second_effect(tmp_path: Path) -> None:
    """If the process is killed, its servers end, the open call's outcome is unknown, and it restarts."""
    server = scripted(
        tmp_path, [tool_definition("slow"), tool_definition("a")], {"slow": {"sleep": 60}, "a": OK}
    )
    async with hosted(server) as host:
        found = await host.definitions("toy")
        call = asyncio.create_task(host.client.call("toy", "slow", found["slow"].digest, {}, LATE_S))
        await until(lambda: calls_of(tmp_path) == ["slow"])
        (group,) = host.process._groups
        os.kill(host.process._pid, signal.SIGKILL)
        with pytest.raises(ToolFailure, match="may have taken effect"):
            await call
        await until(lambda: not runs(group))
        await host.becomes("toy", "ready")
        assert read_result(await host.client.call("toy", "a", found["a"].digest, {}, LATE_S)).text == "fine"
    assert calls_of(tmp_path) == ["slow", "a"]


DAEMON = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        with open(sys.argv[1], "a") as file:
            file.write(f"{os.getpid()}\\n")
        time.sleep(3600)
    os._exit(0)
os.wait()
os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
"""


def with_daemon(folder: Path, name: str, *, hidden: bool = False) -> Server:
    """Return a server that leaves a daemon in a session of its own, and perhaps without our environment."""
    server = scripted(folder, [tool_definition("a"), tool_definition("die")], DIES, name=name)
    program = folder / f"{name}-daemon.py"
    if hidden:
        sleeps = 'exec env -i setsid sh -c \'echo $$ >> "$0"; exec sleep 3600\' "$1" &'
        script = f'({sleeps}) </dev/null >/dev/null 2>&1; shift; exec "$@"'
        args = ("-c", script, "sh", str(folder / f"{name}.pids"), server.command, *server.args)
        return replace(server, command="/bin/sh", args=args)
    program.write_text(DAEMON)
    return replace(server, args=(str(program), str(folder / f"{name}.pids"), *server.args))


def daemons(folder: Path, name: str) -> list[int]:
    """Return the pids of a server's daemons."""
    path = folder / f"{name}.pids"
    return [int(line) for line in path.read_text().split()] if path.exists() else []


DIES = {"a": OK, "die": {"die": True}}


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has subreapers")
@pytest.mark.parametrize("hidden", [False, True])
async def test_a_daemon_of_a_server_ends_with_it(tmp_path: Path, hidden: bool) -> None:
    """A daemon in a session of its own ends with its server, another server's goes on until the end."""
    toy, other = with_daemon(tmp_path, "toy", hidden=hidden), with_daemon(tmp_path, "other")
    async with hosted(toy, other) as host:
        digest = (await host.definitions("toy"))["die"].digest
        await host.becomes("other", "ready")
        await until(lambda: daemons(tmp_path, "toy") != [] and daemons(tmp_path, "other") != [])
        (first,), (beside,) = daemons(tmp_path, "toy"), daemons(tmp_path, "other")
        assert runs(first)
        with pytest.raises(ToolFailure, match="was lost"):
            await host.client.call("toy", "die", digest, {}, LATE_S)
        await until(lambda: not Path(f"/proc/{first}").exists())
        await until(lambda: len(daemons(tmp_path, "toy")) == 2)
        assert runs(beside)
    for pid in (*daemons(tmp_path, "toy"), *daemons(tmp_path, "other")):
        await until(lambda pid=pid: not runs(pid))  # type: ignore[misc]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has the flag")
def test_no_other_process_of_the_user_can_read_its_memory() -> None:
    """After the call a process cannot be traced or dumped, and a program that it starts can."""
    flag = "import ctypes; print(ctypes.CDLL(None).prctl(3), flush=True)"
    hides = "from proxy.net.own_process import hide_memory; hide_memory()"
    starts = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {flag!r}])"
    code = f"{flag}; {hides}; {flag}; {starts}"
    told = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True)
    assert told.stdout.split() == [b"1", b"0", b"1"]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has the flag")
async def test_the_process_hides_its_memory(tmp_path: Path) -> None:
    """Linux gives the files of a process that hides its memory to root, whoever runs it."""
    environment = {"PYTHONPATH": os.pathsep.join(sys.path)}
    code = "from proxy.tools.mcp.host import program; program._serve = look; program.main(0)"
    look = "import asyncio, ctypes\nasync def look(fd): print(ctypes.CDLL(None).prctl(3))\n"
    told = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", look + code], stdout=subprocess.PIPE, env=environment
    )
    assert told.stdout.strip() == b"0"


@pytest.mark.skipif(not hasattr(socket, "SO_PEERCRED"), reason="the system does not tell")
async def test_a_process_of_another_user_is_not_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection to the socket is closed unless it is of the same user."""
    settings = HostSettings()
    service = Service(settings, Groups(lambda runs: None), lambda name, before, one: None)
    path = tmp_path / "s"
    async with await asyncio.start_unix_server(service.serve, path):
        reader, writer = await asyncio.open_unix_connection(path)
        assert len(await reader.readexactly(8)) == 8
        writer.close()
        monkeypatch.setattr(os, "getuid", lambda: 12345)
        reader, writer = await asyncio.open_unix_connection(path)
        assert await reader.read() == b""
        writer.close()


async def test_a_worker_that_goes_cancels_its_calls(tmp_path: Path) -> None:
    """If a client of the process closes, its open call is cancelled at the server; another's goes on."""
    answers = {"unanswered": {}, "a": OK}
    server = scripted(tmp_path, [tool_definition(name) for name in answers], answers)
    async with hosted(server) as host:
        found = await host.definitions("toy")
        digest = found["unanswered"].digest
        going_on = asyncio.create_task(host.client.call("toy", "unanswered", digest, {}, LATE_S))
        other = HostClient(host.process.path)
        other.start()
        assert read_result(await other.call("toy", "a", found["a"].digest, {}, LATE_S)).text == "fine"
        call = asyncio.create_task(other.call("toy", "unanswered", digest, {}, LATE_S))
        await until(lambda: sorted(calls_of(tmp_path)) == ["a", "unanswered", "unanswered"])
        await other.aclose()
        with pytest.raises(ToolFailure, match="may have taken effect"):
            await call
        await until(lambda: "cancelled" in calls_of(tmp_path))
        assert read_result(await host.client.call("toy", "a", found["a"].digest, {}, LATE_S)).text == "fine"
        assert calls_of(tmp_path)[3:] == ["cancelled", "a"]
        assert not going_on.done()
        going_on.cancel()


async def test_one_server_that_is_broken_takes_no_other_with_it(tmp_path: Path) -> None:
    """A server with an invalid list is not connected and says why; the other server works."""
    good = scripted(tmp_path, [tool_definition("a")], {"a": OK}, name="good")
    bad = scripted(tmp_path, [], name="bad", listed={"tools": 3})
    async with hosted(good, bad) as host:
        assert "list of tools" in (await host.client.listing("bad", PATIENCE_S)).status.reason
        found = await host.definitions("good")
        assert read_result(await host.client.call("good", "a", found["a"].digest, {}, LATE_S)).text == "fine"
        with pytest.raises(ToolFailure, match="bad is not connected"):
            await host.client.call("bad", "a", "x", {}, LATE_S)


async def test_a_result_that_is_too_large_fails_its_call(tmp_path: Path) -> None:
    """A result over the limit fails only its own call; the next call works."""
    large = {"result": {"content": [{"type": "text", "text": "x" * (9 << 20)}]}}
    server = scripted(tmp_path, [tool_definition("large"), tool_definition("a")], {"large": large, "a": OK})
    async with hosted(server) as host:
        found = await host.definitions("toy")
        with pytest.raises(ToolFailure, match="larger than"):
            await host.client.call("toy", "large", found["large"].digest, {}, LATE_S)
        assert read_result(await host.client.call("toy", "a", found["a"].digest, {}, LATE_S)).text == "fine"


async def test_what_a_server_logs_to_its_output_is_told_once(tmp_path: Path) -> None:
    """The log says once that lines were skipped, without their words, which the status has for a person."""
    answers = {"a": {"raw": "SECRET two\nSECRET three", **OK}}
    server = scripted(tmp_path, [tool_definition("a")], answers, says={"initialize": "SECRET one"})
    with capture_logs() as lines:
        async with hosted(server) as host:
            found = await host.definitions("toy")
            for _ in range(2):
                result = await host.client.call("toy", "a", found["a"].digest, {}, LATE_S)
                assert read_result(result).text == "fine"
            assert host.client.statuses["toy"].skipped == "SECRET one"
            await until(lambda: any(line["event"] == "mcp_connected" for line in lines))
    assert [line["event"] for line in lines[:2]] == ["mcp_output_skipped", "mcp_connected"]
    assert [line["event"] for line in lines].count("mcp_output_skipped") == 1
    assert "SECRET" not in repr(lines)


async def test_without_the_process_a_call_fails_and_does_not_hang(tmp_path: Path) -> None:
    """If the process does not run, a call fails with the message that the server is not connected."""
    client = HostClient(tmp_path / "none.sock")
    client.start()
    try:
        with pytest.raises(ToolFailure, match="not connected"):
            await client.call("toy", "a", "x", {}, LATE_S)
    finally:
        await client.aclose()


async def test_a_long_path_for_temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the temporary path is too long for a socket, the process uses another private folder."""
    deep = tmp_path / ("x" * 60) / ("y" * 60)
    deep.mkdir(parents=True)
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    server = scripted(tmp_path, [tool_definition("a")], {"a": OK})
    async with hosted(server) as host:
        assert len(str(host.process.path)) <= 100
        assert host.process.path.parent.stat().st_mode & 0o077 == 0
        assert list(await host.definitions("toy")) == ["a"]
    assert not host.process.path.parent.exists()


def test_no_folder_for_a_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    """If no folder for the socket can be made, the error names the variable TMPDIR."""
    monkeypatch.setattr(tempfile, "mkdtemp", _refuses)
    with pytest.raises(ConfigError, match="TMPDIR: names no folder"):
        HostProcess(b"{}")


def _refuses(**_: object) -> str:
    raise OSError("it is read-only")


async def test_a_connection_is_kept_whatever_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Work of the host process that ends with an error begins again, and the parent process is told."""
    monkeypatch.setattr("proxy.tools.mcp.host.program._AGAIN_S", 0.0)
    told: list[str] = []
    again = asyncio.Event()

    async def work() -> None:
        if told:
            again.set()
            await asyncio.Event().wait()
        raise TypeError("odd")

    kept = asyncio.create_task(_keep(lambda error: told.append(type(error).__name__), work))
    async with asyncio.timeout(LATE_S):
        await again.wait()
    assert told == ["TypeError"]
    kept.cancel()
    await kept
