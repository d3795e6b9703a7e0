"""Starts the processes of the program that tests ask for by forking one that has imported it already.

``python -m proxy ...`` takes over half a second of CPU time until it has imported the package, and the tests
start it some hundred times. While :func:`forked_starts` is in use, :class:`subprocess.Popen`, and with it
asyncio, sends such a command to a fork server, which has imported the package once. It forks a process with
the command's arguments, environment, folder and descriptors, that runs the same code to its own end. The
process becomes a child of the test's process, which can signal it and wait for it like any other.

Everything else is started as ever: other programs and interpreters, ``python`` with other options, and what
asks for something that a fork cannot give, such as another user. So tests of imports, of the installed
command and of the supervisor's own processes start real interpreters.
"""

import contextlib
import ctypes
import fcntl
import gc
import importlib
import inspect
import io
import json
import os
import runpy
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

_LOADED = (
    "proxy.commands.cli",
    "proxy.commands.serve.multiprocess",
    "proxy.commands.serve.supervisor.worker",
    "proxy.tools.mcp.host.program",
)
"""What the fork server imports: with it come nearly all modules that any command needs."""

_OWN_PROGRAM = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from proxy."
"""The code with which the package starts its own processes (``-P -c``)."""

_SET_CHILD_SUBREAPER = 36
"""``PR_SET_CHILD_SUBREAPER`` of ``prctl(2)``."""

_READ_AT_START = ("PYTHON", "LD_", "MALLOC_", "GLIBC_TUNABLES")
"""Variables that an interpreter, the linker or the C library reads once, before any code of ours runs."""

_TAKEN_OVER = ("PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED")
"""Those of them that a forked process follows too."""

_PARAMETERS = tuple(inspect.signature(subprocess.Popen._execute_child).parameters)[1:]  # type: ignore[attr-defined]
"""The names of what :class:`subprocess.Popen` hands to the method that starts a process."""

_PLAIN_LOCALES = ("C", "POSIX", "C.UTF-8", "C.utf8")
"""Locales in which Python writes bytes that are no text as they were (PEP 538, PEP 540)."""

_LENGTH = struct.Struct("!I")
_MOST_FDS = 64
_FREE_FDS = 256
"""The first descriptor that no command is given by number."""


def _is_ours(args: Sequence[Any]) -> bool:
    """Return whether a command runs the package in the interpreter of the tests."""
    match args:
        case [sys.executable, "-m", "proxy", *_]:
            return True
        case [sys.executable, "-P", "-c", str(code), *_]:
            return code.startswith(_OWN_PROGRAM)
    return False


class _ForkServer:
    """The fork server of this process, started with the first command."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._environment: Mapping[str, str] = {}
        self._lock = threading.Lock()
        self._prctl = ctypes.CDLL(None).prctl

    def fits(self, env: Mapping[str, str]) -> bool:
        """Return whether a command with this environment can be forked."""

        def early(variables: Mapping[str, str]) -> dict[str, str]:
            return {
                name: value
                for name, value in variables.items()
                if name.startswith(_READ_AT_START) and name not in _TAKEN_OVER
            }

        with self._lock:
            self._start()
        return early(env) == early(self._environment)

    def start(self, job: Mapping[str, Any], fds: Sequence[int]) -> int:
        """Fork a process for the job; return its id."""
        with self._lock:
            assert self._socket is not None
            message = json.dumps(job).encode()
            # A process whose parent ends becomes a child of the nearest ancestor that asks for it.
            self._prctl(_SET_CHILD_SUBREAPER, 1)
            try:
                socket.send_fds(self._socket, [_LENGTH.pack(len(message))], fds)
                self._socket.sendall(message)
                return int(_LENGTH.unpack(_received(self._socket, _LENGTH.size))[0])
            finally:
                self._prctl(_SET_CHILD_SUBREAPER, 0)

    def _start(self) -> None:
        if self._process is not None:
            return
        self._socket, theirs = socket.socketpair()
        self._environment = dict(os.environ)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                cwd=Path(__file__).resolve().parents[3],
            )

    def close(self) -> None:
        """End the fork server; the processes that it has started go on."""
        if self._process is not None and self._socket is not None:
            self._socket.close()
            self._process.wait()


def _received(source: socket.socket, size: int) -> bytes:
    """Receive that many bytes; raise EOFError if the other end closes before."""
    data = b""
    while len(data) < size:
        piece = source.recv(size - len(data))
        if not piece:
            raise EOFError
        data += piece
    return data


@contextlib.contextmanager
def forked_starts() -> Iterator[None]:
    """Fork the commands of the package until the end of the block."""
    server = _ForkServer()
    original = subprocess.Popen._execute_child  # type: ignore[attr-defined]

    def execute_child(popen: "subprocess.Popen[Any]", *values: Any) -> None:
        given = dict(zip(_PARAMETERS, values, strict=True))
        env = os.environ if given["env"] is None else given["env"]
        if not (_is_ours(given["args"]) and _can_be_forked(given) and server.fits(env)):
            original(popen, *values)
            return
        standard = [
            number if number >= 0 else inherited
            for inherited, number in enumerate((given["p2cread"], given["c2pwrite"], given["errwrite"]))
        ]
        passed = sorted(given["pass_fds"])
        job = {
            "args": list(given["args"]),
            "cwd": os.path.abspath(given["cwd"] or os.getcwd()),
            "env": dict(env),
            "session": given["start_new_session"],
            "umask": _umask(),
            "passed": passed,
        }
        popen.pid = server.start(job, [*standard, *passed])
        popen._child_created = True  # type: ignore[attr-defined]
        popen._close_pipe_fds(  # type: ignore[attr-defined]
            *(given[name] for name in ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite"))
        )

    subprocess.Popen._execute_child = execute_child  # type: ignore[attr-defined]
    try:
        yield
    finally:
        subprocess.Popen._execute_child = original  # type: ignore[attr-defined]
        server.close()


def _can_be_forked(given: Mapping[str, Any]) -> bool:
    """Return whether a command asks for nothing that only the operating system's own start can give."""
    return (
        given["executable"] is None
        and given["preexec_fn"] is None
        and not given["shell"]
        and given["close_fds"]
        and given["process_group"] == -1
        and all(given[name] is None for name in ("gid", "gids", "uid"))
        and given["umask"] == -1
        and (given["cwd"] is None or os.path.isdir(given["cwd"]))
        and max(given["pass_fds"], default=0) < _FREE_FDS
    )


def _umask() -> int:
    """Return the umask of this process, which no function returns without setting it."""
    status = Path("/proc/self/status").read_text("ascii")
    return int(status.partition("Umask:")[2].split(maxsplit=1)[0], 8)


def _next_job(requests: socket.socket) -> Mapping[str, Any]:
    """Fork a process for each request; return the request in that process, and exit when no more come."""
    while True:
        head, fds, _, _ = socket.recv_fds(requests, _LENGTH.size, _MOST_FDS)
        if not head:
            os._exit(0)
        job: dict[str, Any] = json.loads(_received(requests, _LENGTH.unpack(head)[0]))
        # The process waits for the end of `adopted`, which comes when the tests' process is its parent.
        adopted, forked = os.pipe()
        answer, answering = os.pipe()
        between = os.fork()
        if between == 0:
            pid = os.fork()
            if pid == 0:
                os.close(forked)
                os.read(adopted, 1)
                job["fds"] = fds
                return job
            os.write(answering, _LENGTH.pack(pid))
            os._exit(0)
        os.waitpid(between, 0)
        packed = os.read(answer, _LENGTH.size)
        for number in (*fds, adopted, forked, answer, answering):
            os.close(number)
        requests.sendall(packed)


def _take_over(job: Mapping[str, Any]) -> None:
    """Make this process look as if the operating system had started the command in it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if job["session"]:
        os.setsid()
    # First out of the way of the numbers that they get.
    moved = [fcntl.fcntl(number, fcntl.F_DUPFD, _FREE_FDS) for number in job["fds"]]
    os.closerange(3, _FREE_FDS)
    for number, target in zip(moved, (0, 1, 2, *job["passed"]), strict=True):
        os.dup2(number, target, inheritable=True)
    os.closerange(_FREE_FDS, max(moved) + 1)
    os.chdir(job["cwd"])
    os.umask(job["umask"])
    os.environ.clear()
    os.environ.update(job["env"])
    if _named_locale() in ("C", "POSIX") and not os.environ.get("LC_ALL"):
        os.environ["LC_CTYPE"] = "C.UTF-8"  # As an interpreter does at its start (PEP 538).
    time.tzset()
    _open_standard_streams()


def _named_locale() -> str:
    """Return the locale of characters that the environment names."""
    named = (os.environ.get(name) for name in ("LC_ALL", "LC_CTYPE", "LANG"))
    return next(filter(None, named), "C")


def _open_standard_streams() -> None:
    """Open the streams anew, as an interpreter does at its start."""
    unbuffered = bool(os.environ.get("PYTHONUNBUFFERED"))
    errors = "surrogateescape" if _named_locale() in _PLAIN_LOCALES else "strict"

    def output(number: int, errors: str, *, lines: bool) -> io.TextIOWrapper:
        binary = open(number, "wb", 0 if unbuffered else -1, closefd=False)  # noqa: SIM115 (to the end)
        return io.TextIOWrapper(binary, "utf-8", errors, line_buffering=lines, write_through=unbuffered)

    sys.stdin = sys.__stdin__ = open(0, encoding="utf-8", errors=errors, closefd=False)  # type: ignore[misc]  # noqa: SIM115
    sys.stdout = sys.__stdout__ = output(1, errors, lines=os.isatty(1))  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = output(2, "backslashreplace", lines=not unbuffered)  # type: ignore[misc]
    sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))


def _run(args: Sequence[str]) -> None:
    """Run the command of the arguments after the interpreter."""
    if args[1] == "-m":
        sys.path[0] = os.getcwd()
        sys.argv[:] = ["-m", *args[3:]]
        runpy.run_module(args[2], run_name="__main__", alter_sys=True)
        return
    del sys.path[0]
    code = args[3]
    sys.argv[:] = ["-c", *args[4:]]
    main = sys.modules["__main__"] = ModuleType("__main__")
    exec(compile(code, "<string>", "exec"), main.__dict__)  # noqa: S102 (the package's own code)


def _serve(requests: int) -> Mapping[str, Any]:
    """Serve the requests of a socket; return a command in each process that must run it."""
    gc.disable()
    for name in _LOADED:
        importlib.import_module(name)
    gc.enable()
    # A collection would write to the memory that the processes share.
    gc.freeze()
    # The tests' process is told of Ctrl-C, and ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return _next_job(socket.socket(fileno=requests))


if __name__ == "__main__":
    _job = _serve(int(sys.argv[1]))
    _take_over(_job)
    _run(_job["args"])
