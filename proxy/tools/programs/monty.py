"""The engine Monty: an interpreter of a part of Python, with one process for each program.

Source: ``pydantic-monty`` 1.4.0. Its own worker process confines a program; why there is a process of ours
around it stands in ``monty_child.py``.
"""

import asyncio
import base64
import contextlib
import importlib.util
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import orjson

from proxy.base.errors import ConfigError, how_to_install
from proxy.tools.programs.engine import Binding, ProgramCall, ProgramFailed, ProgramLimits, Step

_LIBRARY: Final = "pydantic_monty"
_PROGRAM: Final = Path(__file__).with_name("monty_child.py")
_AT_ONCE: Final = 16
"""How many programs a process of the proxy runs at the same time; others wait for their turn."""
_MOST_LINE: Final = 32 << 20
"""The most bytes of one message of the child."""
_GRACE_S: Final = 5.0
"""How many seconds the child gets beyond the program's own, to start and to report that they are over."""

_KILLED: Final = "the program used too much memory or time and was stopped"


def is_installed() -> bool:
    """Return whether the engine is installed."""
    return importlib.util.find_spec(_LIBRARY) is not None


def check_installed() -> None:
    """Raise :class:`~proxy.base.errors.ConfigError` if the engine is not installed."""
    if not is_installed():
        raise ConfigError(
            "tools.programs", "needs pydantic-monty, which is not installed", how_to_install("programs")
        )


class MontyEngine:
    """Opens sessions; each has a process of its own. The proxy's process has one engine."""

    def __init__(self, limits: ProgramLimits, *, at_once: int = _AT_ONCE) -> None:
        self._limits = limits
        self._free = asyncio.Semaphore(at_once)

    def session(self) -> "MontySession":
        """Return a session for one program."""
        return MontySession(self._limits, self._free)


class MontySession:
    """One program in its process; see :class:`~proxy.tools.programs.engine.Session`."""

    def __init__(self, limits: ProgramLimits, free: asyncio.Semaphore) -> None:
        self._limits = limits
        self._free = free
        self._holds = False
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int | None:
        """The process and its group; ``None`` while there is none."""
        return None if self._process is None else self._process.pid

    async def start(self, code: str, tools: Mapping[str, Binding], state: bytes = b"") -> Step:
        """Start the process, and run the program in it."""
        await self._free.acquire()
        self._holds = True
        # -I: neither the environment nor the current folder affects imports.
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-IB",
            str(_PROGRAM),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env={},
            start_new_session=True,
            limit=_MOST_LINE,
        )
        limits = {"memory": self._limits.memory, "seconds": self._limits.seconds}
        if state:
            written = base64.b64encode(state).decode()
            return _step(await self._ask({"do": "restore", "state": written, "limits": limits}))
        named = {name: [bound.tool, bound.parameters] for name, bound in tools.items()}
        return _step(await self._ask({"do": "start", "code": code, "tools": named, "limits": limits}))

    async def resume(self, results: Mapping[int, str]) -> Step:
        """Go on with the results of calls."""
        made = {str(call): text for call, text in results.items()}
        return _step(await self._ask({"do": "resume", "results": made}))

    async def dump(self) -> bytes:
        """Return the state of the program."""
        return base64.b64decode((await self._ask({"do": "dump"}))["state"])

    async def close(self) -> None:
        """Kill the process with all that it started."""
        process, self._process = self._process, None
        try:
            if process is not None:
                # Also if it has ended itself: its worker may be left.
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        finally:
            if self._holds:
                self._holds = False
                self._free.release()

    async def _ask(self, message: dict[str, Any]) -> dict[str, Any]:
        """Send a message and return the answer; raise :class:`.ProgramFailed` if none comes in time."""
        process = self._process
        if process is None or process.stdin is None or process.stdout is None:
            raise ProgramFailed("the program has ended")
        try:
            async with asyncio.timeout(self._limits.seconds + _GRACE_S):
                process.stdin.write(orjson.dumps(message) + b"\n")
                await process.stdin.drain()
                line = await process.stdout.readline()
            answer: dict[str, Any] = orjson.loads(line)
        except (TimeoutError, ValueError, ConnectionError):
            raise ProgramFailed(_KILLED) from None
        if "error" in answer:
            raise ProgramFailed(str(answer["error"]), str(answer["printed"]))
        return answer


def _step(answer: Mapping[str, Any]) -> Step:
    calls = [ProgramCall(call["id"], call["name"], call["arguments"]) for call in answer.get("calls", ())]
    return Step(calls, answer.get("result"), answer["printed"])
