"""A forked process of the program cannot tell that the operating system has not started its interpreter."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from forked_starts import forked_starts

_STARTED = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from proxy.base import errors; "
"""How the package starts processes of its own."""

_LOOK = """
import os, signal, time
print(json.dumps({
    "argv": sys.argv[2:],
    "path": sys.path,
    "cwd": os.getcwd(),
    "env": dict(os.environ),
    "umask": os.umask(0),
    "fds": sorted(int(fd) for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}")),
    "leads": os.getsid(0) == os.getpid(),
    "parent": os.getppid(),
    "signals": {s.name: str(signal.getsignal(s)) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE)},
    "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
    "limits": open("/proc/self/limits").read(),
    "streams": [
        (s.encoding, s.errors, s.line_buffering, s.write_through) for s in (sys.stdout, sys.stderr)
    ],
    "bytecode": sys.dont_write_bytecode,
    "zone": time.tzname,
    "main": sys.modules["__main__"].__dict__ is globals(),
    "stdin": sys.stdin.read(),
}))
"""


def look(folder: Path, passed: tuple[int, ...], **more: Any) -> dict[str, Any]:
    """Return what a process of the package sees of itself."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", _STARTED + _LOOK, json.dumps(sys.path), "an argument", "é"],
        input="what it is told",
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        cwd=folder,
        pass_fds=passed,
        **more,
    )
    return dict(json.loads(done.stdout))


@pytest.mark.parametrize(
    "variables",
    [{}, {"TZ": "Asia/Tokyo"}, {"PYTHONUNBUFFERED": "1"}, {"PYTHONDONTWRITEBYTECODE": "1"}],
    ids=["plain", "TZ", "PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE"],
)
def test_a_forked_process_sees_what_a_started_one_sees(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]
) -> None:
    """Folder, environment, descriptors, session, streams and signals are those that the command asks for."""
    forking = subprocess.Popen._execute_child  # type: ignore[attr-defined]
    (original,) = [cell.cell_contents for cell in forking.__closure__ if callable(cell.cell_contents)]
    env = {"PATH": os.environ["PATH"], **variables}
    reading, writing = os.pipe()
    before = os.umask(0o027)
    try:
        more: dict[str, Any] = {"passed": (writing,), "env": env, "start_new_session": True}
        forked = look(tmp_path, **more)
        monkeypatch.setattr(subprocess.Popen, "_execute_child", original)
        started = look(tmp_path, **more)
    finally:
        os.umask(before)
        os.close(reading)
        os.close(writing)
    assert forked == started
    assert forked["parent"] == os.getpid()


def test_the_way_it_ends_is_seen(tmp_path: Path) -> None:
    """The exit status of a command, and the signal that ends it, come to the test as from any process."""
    command = [sys.executable, "-P", "-c"]
    paths = json.dumps(sys.path)
    ends = "import os; os.kill(os.getpid(), 9)", "sys.exit(7)", "raise RuntimeError('a fault')", "pass"
    done = [subprocess.run([*command, _STARTED + end, paths], capture_output=True, text=True) for end in ends]
    assert [each.returncode for each in done] == [-9, 7, 1, 0]
    assert done[2].stderr.endswith("RuntimeError: a fault\n")


async def test_asyncio_waits_for_it_and_signals_it(tmp_path: Path) -> None:
    """asyncio starts, signals and awaits a forked process; Ctrl-C interrupts it as it does any Python."""
    code = _STARTED + "import time; print('up', flush=True); time.sleep(600)"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-c", code, json.dumps(sys.path)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"up\n"
    process.send_signal(signal.SIGINT)
    assert b"KeyboardInterrupt" in (await process.communicate())[1]
    assert process.returncode == -signal.SIGINT


def test_what_a_fork_cannot_give_is_started(tmp_path: Path) -> None:
    """A command with variables that an interpreter reads at its start runs in an interpreter of its own."""
    code = _STARTED + "print(sys.flags.hash_randomization)"
    env = {"PATH": os.environ["PATH"], "PYTHONHASHSEED": "0"}
    command = [sys.executable, "-P", "-c", code, json.dumps(sys.path)]
    assert subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout == "0\n"
    with pytest.raises(FileNotFoundError):
        subprocess.run(command, cwd=tmp_path / "missing", check=True)


def test_other_commands_are_started_as_ever() -> None:
    """Only commands of the package are forked, only within the block."""
    outer = subprocess.Popen._execute_child  # type: ignore[attr-defined]
    with forked_starts():
        assert subprocess.Popen._execute_child is not outer  # type: ignore[attr-defined]
        code = "import sys; print('proxy' in sys.modules)"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout == "False\n"
    assert subprocess.Popen._execute_child is outer  # type: ignore[attr-defined]
